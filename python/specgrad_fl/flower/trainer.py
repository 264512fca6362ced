"""Training of a node's clients, one after the other, each on its own samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specgrad_fl import machine, methods, prepare
from specgrad_fl.client import ClientRunner
from specgrad_fl.errors import RunError
from specgrad_fl.flower import shards, wire
from specgrad_fl.flower.keeping import Keeping
from specgrad_fl.prepare import Blueprint
from specgrad_fl.samples import Samples
from specgrad_fl.vectors import Board, private


class Trainer:
    """One model for the clients of one run on this node."""

    def __init__(
        self, order: dict[str, Any], data: Path, states: Path, node: Mapping[str, Any]
    ) -> None:
        try:
            blueprint = Blueprint.parse(order["blueprint"])
        except (KeyError, TypeError) as error:
            raise wire.WireError(f"an order with a blueprint of another form: {error}") from error
        if "device" in node:
            config = blueprint.config.replace(device=node["device"])
            blueprint = Blueprint(config, blueprint.kind, blueprint.inputs)
        self.config = blueprint.config
        torch.set_num_threads(self.config.threads)
        self._blueprint = blueprint
        self._data = data
        self._keeping = Keeping(states, order["run"])
        self._flat = prepare.build_model(blueprint)
        self._method = methods.build(
            self.config.method, self.config.options, self._federation(order["sizes"])
        )
        layout = Board.layout(
            self._flat.size,
            self._flat.buffer_size,
            1,
            self._method.sent_vectors,
            self._method.client_vectors,
        )
        self._board = Board(private(layout))
        self._runner: ClientRunner | None = None

    def _federation(self, sizes: list[int]) -> methods.Federation:
        """What a method may know here: everybody's sizes, the labels of this node's clients."""
        classes = self._blueprint.inputs.num_classes
        histograms = torch.zeros(len(sizes), classes, dtype=torch.int64)
        for client in shards.clients_in(self._data):
            if client < len(sizes):
                labels = torch.from_numpy(shards.read(self._data, client, ("train_y",))["train_y"])
                histograms[client] = torch.bincount(labels, minlength=classes)
        return methods.Federation(
            sizes=torch.tensor(sizes),
            histograms=histograms,
            test_histogram=torch.zeros(classes, dtype=torch.int64),
            size=self._flat.size,
            groups=prepare.layer_groups(self._flat),
            server_lr=self.config.server_lr,
        )

    def work(
        self, order: dict[str, Any], arrays: wire.Arrays
    ) -> tuple[dict[str, Any], wire.Arrays]:
        """Train the clients of an order."""
        self._take(arrays)
        reports: dict[str, Any] = {}
        results: wire.Arrays = {}
        for client in order["clients"]:
            try:
                reports[str(client)] = self._train(order, client, results)
            except RunError as error:
                reports[str(client)] = {"error": str(error)}
        return {"protocol": wire.PROTOCOL, "round": order["round"], "reports": reports}, results

    def _take(self, arrays: wire.Arrays) -> None:
        """Put what the server sent on the board."""
        board = self._board
        expected = {"weights": board.weights, "buffers": board.buffers}
        expected |= {f"sent-{name}": vector for name, vector in board.sent.items()}
        for name, vector in wire.present(expected).items():
            found = wire.check_array(arrays, name, vector.numpy(), f"{name} from the server")
            vector.copy_(torch.from_numpy(found.copy()))

    def _train(self, order: dict[str, Any], client: int, results: wire.Arrays) -> dict[str, Any]:
        method, board = self._method, self._board
        newest, stored = order["newest"].get(str(client), 0), order["stored"].get(str(client), 0)
        state = self._keeping.load(client, newest, method.client_vectors, self._flat.size)
        for name, vector in state.items():
            board.states[name][0].copy_(vector)
        report = self._runner_for(client).train(order["round"], order["lr"], client, 0)
        kept = {name: rows[0].clone() for name, rows in board.states.items()}
        self._keeping.save(client, order["round"] + 1, kept, {newest, stored})
        sent = {"weights": board.results[0], "buffers": board.buffer_results[0]}
        sent |= {f"state-{name}": kept[name] for name in method.client_vectors[: method.up - 1]}
        for name, vector in wire.present(sent).items():
            results[f"{client}/{name}"] = vector.numpy().copy()
        return report.as_dict()

    def _runner_for(self, client: int) -> ClientRunner:
        """The runner with the samples of one client, and of no other."""
        arrays = {
            name: torch.from_numpy(np.require(array, requirements="W"))
            for name, array in shards.read(self._data, client, ("train_x", "train_y")).items()
        }
        count = len(arrays["train_y"])
        arrays |= {"test_x": arrays["train_x"][:0], "test_y": arrays["train_y"][:0]}
        samples = Samples(self._blueprint.kind, arrays, machine.device_of(self.config))
        partition = {client: torch.arange(count)}
        if self._runner is None:
            self._runner = ClientRunner(
                self.config, self._flat, samples, partition, self._method, self._board
            )
        self._runner.samples, self._runner.partition = samples, partition
        return self._runner
