"""What a client keeps between rounds, on its own disk, by run, client and round.

The server says which round's state a client goes on from, and which one it would need after going
back to its last checkpoint. Both are kept until the server names newer ones, so that a server that
is killed and resumed finds every client as it left it.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from specgrad_fl import storage
from specgrad_fl.errors import RunError
from specgrad_fl.methods.base import Vectors


class Keeping:
    """The states of one run's clients on a node."""

    def __init__(self, folder: Path, run: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise RunError(f"run is {run!r}; expected its name in hexadecimal digits")
        self.folder = folder / run

    def _path(self, client: int, round_number: int) -> Path:
        return self.folder / f"{client:06d}-{round_number:06d}.safetensors"

    def load(self, client: int, round_number: int, names: tuple[str, ...], size: int) -> Vectors:
        """The state after a round; zeros after round 0, when the client was never taken over."""
        if not names or not round_number:
            return {name: torch.zeros(size) for name in names}
        path = self._path(client, round_number)
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
        storage.save_tensors(self._path(client, round_number), state, {})
        kept = {self._path(client, number) for number in (*keep, round_number)}
        for path in self.folder.glob(f"{client:06d}-*.safetensors"):
            if path not in kept:
                path.unlink()
