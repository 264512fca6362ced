"""Training of a node's clients, one after the other, each on its own samples.

The training function is the engine's own :class:`~specgrad_fl.client.ClientRunner`, so that the
filter acts on every local gradient and every method is the same code as in one process.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specgrad_fl import machine, methods, prepare, storage
from specgrad_fl.client import ClientRunner
from specgrad_fl.errors import RunError
from specgrad_fl.flower import wire
from specgrad_fl.flower.place import Place
from specgrad_fl.methods.base import Vectors
from specgrad_fl.prepare import Blueprint
from specgrad_fl.samples import Samples
from specgrad_fl.storage import client_path
from specgrad_fl.vectors import Board, private


class Keeping:
    """What clients keep between rounds, on their own disk, by run, client and round.

    The server says which round's state a client goes on from, and which one it would need after
    going back to its last checkpoint. Both are kept until the server names newer ones, so that a
    server that is killed and resumed finds every client as it left it.
    """

    def __init__(self, folder: Path, run: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise RunError(f"run is {run!r}; expected its name in hexadecimal digits")
        self.folder = folder / run

    def load(self, client: int, round_number: int, names: tuple[str, ...], size: int) -> Vectors:
        """The state after a round; zeros after round 0, when the client was never taken over."""
        if not names or not round_number:
            return {name: torch.zeros(size) for name in names}
        path = client_path(self.folder, client, round_number)
        if not path.is_file():
            raise RunError(
                f"client {client} has no state of round {round_number}: {path} is missing; restore "
                "the file or start a new run"
            )
        vectors, _ = storage.load_tensors(path)
        if set(vectors) != set(names) or any(v.shape != (size,) for v in vectors.values()):
            raise RunError(f"{path} does not fit this model and method; start a new run")
        return vectors

    def save(self, client: int, round_number: int, state: Vectors, keep: set[int]) -> None:
        """Store the state after a round, and remove those of rounds not in ``keep``."""
        if not state:
            return
        storage.make_folder(self.folder, storage.PRIVATE)
        storage.save_tensors(client_path(self.folder, client, round_number), state, {})
        kept = {client_path(self.folder, client, number) for number in (*keep, round_number)}
        for path in self.folder.glob(f"{client:06d}-*.safetensors"):
            if path not in kept:
                path.unlink()


class Trainer:
    """One model for the clients of one run on this node; ``device`` may overrule the run's."""

    def __init__(self, order: dict[str, Any], place: Place, states: Path, device: str = "") -> None:
        try:
            blueprint = Blueprint.parse(order["blueprint"])
        except (KeyError, TypeError) as error:
            raise wire.WireError(f"an order with a blueprint of another form: {error}") from error
        if device:
            config = blueprint.config.replace(device=device)
            blueprint = Blueprint(config, blueprint.kind, blueprint.inputs)
        self.config = blueprint.config
        torch.set_num_threads(self.config.threads)
        self._blueprint = blueprint
        self._place = place
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
        """What a method may know here: everybody's sizes, the labels of clients at this place."""
        classes = self._blueprint.inputs.num_classes
        histograms = torch.zeros(len(sizes), classes, dtype=torch.int64)
        for client in self._place.everybody():
            if client < len(sizes):
                labels = torch.from_numpy(self._place.samples(client)["train_y"])
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
        self, order: dict[str, Any], arrays: wire.Arrays, here: Collection[int]
    ) -> tuple[dict[str, Any], wire.Arrays]:
        """Train the clients of an order; the failure of one is told and leaves the others."""
        self._take(arrays)
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
            for name, array in self._place.samples(client).items()
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
