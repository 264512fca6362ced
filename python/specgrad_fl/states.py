"""What clients keep between rounds: allocated at first participation, in RAM up to a limit.

A state is written to a file that names client and round, and never changed afterwards. A
checkpoint lists the files it needs; files that it does not list are removed only once it is
safely stored. So a run killed at any moment finds every file of its last checkpoint.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import torch
from torch import Tensor

from specgrad_fl import atomic, checkpoint
from specgrad_fl.atomic import PRIVATE

Vectors = dict[str, Tensor]
# the names of the files; whatever else is in the folder is not ours to remove
_OURS = re.compile(rf"\d{{6,}}-\d{{6,}}\.safetensors({re.escape(atomic.TEMPORARY)})?")


def client_path(folder: Path, client: int, round_number: int) -> Path:
    """The file of a client's state after a round."""
    return folder / f"{client:06d}-{round_number:06d}.safetensors"


class ClientRounds:
    """The rounds whose states clients hold that keep them elsewhere, on their own machines."""

    def __init__(self) -> None:
        self._round: dict[int, int] = {}
        self._stored: dict[int, int] = {}

    def get(self, client: int) -> Vectors:
        """Nothing: the state stays with the client."""
        return {}

    def put(self, client: int, round_number: int, state: Vectors) -> None:
        """Note the round after which a client's state was taken over."""
        self._round[client] = round_number

    def newest(self, client: int) -> int:
        """The round of the state that a client must go on from; 0 for zeros."""
        return self._round.get(client, 0)

    def stored(self, client: int) -> int:
        """The round of the state that a client needs after the last checkpoint is restored."""
        return self._stored.get(client, 0)

    def flush(self) -> dict[int, int]:
        """The round of the newest state of each client."""
        return dict(self._round)

    @property
    def digests(self) -> dict[int, str]:
        """Of what is stored here of each client: nothing."""
        return {}

    def restore(self, rounds: dict[int, int], digests: dict[int, str]) -> None:
        """Go back to the states that a checkpoint lists."""
        self._round = dict(rounds)
        self._stored = dict(rounds)

    def sweep(self) -> None:
        """A checkpoint is stored: older states will not be asked for again."""
        self._stored = dict(self._round)


class ClientStates(ClientRounds):
    """Vectors of length ``size`` by client, zero until they are first stored."""

    def __init__(self, folder: Path, names: tuple[str, ...], size: int, ram_mib: float) -> None:
        super().__init__()
        self.folder = folder
        self.names = names
        self.size = size
        bytes_each = max(1, 4 * size * len(names))
        self._capacity = int(ram_mib * 2**20 // bytes_each)
        self._recent: OrderedDict[int, Vectors] = OrderedDict()
        self._unwritten: set[int] = set()
        self._digests: dict[int, str] = {}

    @property
    def digests(self) -> dict[int, str]:
        """Of the stored state of each client."""
        return dict(self._digests)

    def _path(self, client: int, round_number: int) -> Path:
        return client_path(self.folder, client, round_number)

    def get(self, client: int) -> Vectors:
        """The state of a client."""
        if client in self._recent:
            self._recent.move_to_end(client)
            return self._recent[client]
        if client not in self._round:
            return {name: torch.zeros(self.size) for name in self.names}
        state = self._read(client)
        self._keep(client, state)
        return state

    def _read(self, client: int) -> Vectors:
        path = self._path(client, self._round[client])
        return checkpoint.load(path, self._digests.get(client, ""))[0]

    def put(self, client: int, round_number: int, state: Vectors) -> None:
        """Store the state that a client has after a round."""
        self._round[client] = round_number
        self._unwritten.add(client)
        self._keep(client, {name: vector.clone() for name, vector in state.items()})

    def _keep(self, client: int, state: Vectors) -> None:
        self._recent[client] = state
        self._recent.move_to_end(client)
        while len(self._recent) > self._capacity:
            oldest, vectors = self._recent.popitem(last=False)
            if oldest in self._unwritten:
                self._write(oldest, vectors)

    def _write(self, client: int, state: Vectors) -> None:
        atomic.make_folder(self.folder, PRIVATE)
        path = self._path(client, self._round[client])
        self._digests[client] = checkpoint.save(path, state, {})
        self._unwritten.discard(client)

    def flush(self) -> dict[int, int]:
        """Write what is not on disk yet; the round of the newest state of each client."""
        for client in sorted(self._unwritten):
            self._write(client, self._recent[client])
        return dict(self._round)

    def restore(self, rounds: dict[int, int], digests: dict[int, str]) -> None:
        """Go back to the states that a checkpoint lists, each of them read once."""
        self._recent.clear()
        self._unwritten.clear()
        self._round, self._digests = dict(rounds), dict(digests)
        for client in rounds:
            self._read(client)
        self.sweep()

    def sweep(self) -> None:
        """Remove files that the stored checkpoint does not need."""
        if not self.folder.is_dir():
            return
        needed = {self._path(client, number) for client, number in self._round.items()}
        for path in self.folder.iterdir():
            if path not in needed and _OURS.fullmatch(path.name):
                path.unlink()

    @property
    def resident(self) -> int:
        """Clients whose state is in RAM."""
        return len(self._recent)
