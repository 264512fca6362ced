"""The ClientApp that SuperNodes run: say which clients are here, and train them.

Clients are trained one after the other, each on its own samples, by the engine's own
:class:`~specgrad_fl.client.ClientRunner`: the filter acts on every local gradient, and every
method is the same code as in one process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from specgrad_fl import building, machine, methods
from specgrad_fl.building import Blueprint
from specgrad_fl.client import ClientRunner
from specgrad_fl.errors import RunError
from specgrad_fl.flower import wire
from specgrad_fl.flower.place import (
    ClientStateStore,
    NodeConfig,
    NodeData,
    allowed_names,
    fingerprint,
)
from specgrad_fl.own_code import restrict_imports
from specgrad_fl.samples import Samples
from specgrad_fl.vectors import SharedVectors, private

Answer = tuple[dict[str, Any], wire.Arrays]
app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Which clients are here."""
    return _answer(_introduce, message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that the server asks for."""
    return _answer(_work, message, context)


def _answer(work: Callable[..., Answer], message: Message, context: Context) -> Message:
    """The reply to an order; what this node or its operator refuses is told in a sentence."""
    node = context.node_config
    try:
        order, arrays = wire.unpack(message.content)
        with restrict_imports(allowed_names(node)):
            facts, results = work(order, arrays, node)
    except RunError as error:
        facts, results = {"refusal": str(error)}, {}
    facts["specgrad"] = metadata.version("specgrad")
    return Message(wire.pack(facts, results), reply_to=message)


def _introduce(order: dict[str, Any], arrays: wire.Arrays, node: NodeConfig) -> Answer:
    """Which clients this node has, and what tells whether their data are those of the run."""
    place = NodeData.of(node, wire.blueprint(order).config)
    found = {client: place.samples(client) for client in place.clients()}
    return {"clients": {c: fingerprint(s["train_x"], s["train_y"]) for c, s in found.items()}}, {}


# what can be used again, as long as this process lives: in a simulation, for several nodes
_trainers: dict[str, Trainer] = {}


def _work(order: dict[str, Any], arrays: wire.Arrays, node: NodeConfig) -> Answer:
    """Train the clients of an order."""
    wire.check_order(order)
    blueprint = wire.blueprint(order)
    place = NodeData.of(node, blueprint.config)
    keeping, device = (
        ClientStateStore(place.states(node), order["run"]),
        str(node.get("device", "")),
    )
    names = [order["blueprint"], order["sizes"], place.key, str(keeping.folder), device]
    purpose = json.dumps([*names, allowed_names(node)])
    if purpose not in _trainers:
        _trainers.clear()
        _trainers[purpose] = Trainer(blueprint, order["sizes"], place, keeping, device)
    return _trainers[purpose].work(order, arrays, place.clients())


class Trainer:
    """One model for the clients of one run on this node; ``device`` may overrule the run's."""

    def __init__(
        self,
        blueprint: Blueprint,
        sizes: list[int],
        place: NodeData,
        keeping: ClientStateStore,
        device: str,
    ) -> None:
        self._config = config = blueprint.config.replace(**{"device": device} if device else {})
        torch.set_num_threads(config.threads)
        self._blueprint = Blueprint(config, blueprint.form, blueprint.inputs)
        self._place, self._keeping = place, keeping
        self._flat = building.build_model(self._blueprint)
        # a method sees everybody's sizes here, and nobody's labels
        classes = blueprint.inputs.num_classes
        federation = methods.Federation(
            sizes=torch.tensor(sizes),
            histograms=torch.zeros(len(sizes), classes, dtype=torch.int64),
            test_histogram=torch.zeros(classes, dtype=torch.int64),
            size=self._flat.size,
            groups=building.layer_groups(self._flat),
            server_lr=config.server_lr,
        )
        self._method = method = methods.build(config.method, config.options, federation)
        layout = SharedVectors.layout(self._flat, 1, method.sent_vectors, method.client_vectors)
        self._board = SharedVectors(private(layout))
        self._runner: ClientRunner | None = None

    def work(self, order: dict[str, Any], arrays: wire.Arrays, here: list[int]) -> Answer:
        """Train the clients of an order; the failure of one is told and leaves the others."""
        for name, vector in wire.outgoing(self._board).items():
            vector.copy_(wire.taken(arrays, name, vector, f"{name} from the server"))
        reports: dict[str, Any] = {}
        results: wire.Arrays = {}
        for client in order["clients"]:
            try:
                if client not in here:
                    raise RunError(f"client {client} is not on this node")
                reports[str(client)] = self._train(order, client, results)
            except RunError as error:
                reports[str(client)] = {"error": str(error)}
        return {"round": order["round"], "reports": reports}, results

    def _train(self, order: dict[str, Any], client: int, results: wire.Arrays) -> dict[str, Any]:
        method, board = self._method, self._board
        newest = order["newest"].get(str(client), 0)
        keep = {newest, *(order[name].get(str(client), 0) for name in ("stored", "previous"))}
        state = self._keeping.load(client, newest, method.client_vectors, self._flat.size)
        for name, vector in state.items():
            board.states[name][0].copy_(vector)
        (report,) = self._runner_for(client).train(order["round"], order["lr"], [client], [0])
        kept = {name: rows[0].clone() for name, rows in board.states.items()}
        self._keeping.save(client, order["round"] + 1, kept, keep)
        sent = wire.returned(method, board.results[0], board.buffer_results[0], kept)
        results |= {f"{client}/{name}": vector.numpy().copy() for name, vector in sent.items()}
        return vars(report)

    def _runner_for(self, client: int) -> ClientRunner:
        """The runner with the samples of one client, and of no other."""
        arrays = {
            name: torch.from_numpy(np.require(array, requirements="W"))
            for name, array in self._place.samples(client).items()
        }
        arrays |= {"test_x": arrays["train_x"][:0], "test_y": arrays["train_y"][:0]}
        samples = Samples(self._blueprint.form, arrays, machine.device_of(self._config))
        partition = {client: torch.arange(len(arrays["train_y"]))}
        if self._runner is None:
            self._runner = ClientRunner(
                self._config, self._flat, samples, partition, self._method, self._board
            )
        self._runner.samples, self._runner.partition = samples, partition
        return self._runner
