"""The vectors that server and clients exchange, in memory that processes can share."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

Layout = dict[str, tuple[str, tuple[int, ...]]]
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64)
}


def layout_of(tensors: dict[str, Tensor]) -> Layout:
    """Names, dtypes and shapes."""
    return {
        name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors.items()
    }


def private(layout: Layout) -> dict[str, Tensor]:
    """Zeros for one process."""
    return {name: torch.zeros(shape, dtype=DTYPES[d]) for name, (d, shape) in layout.items()}


def mapped(layout: Layout, folder: Path) -> dict[str, Tensor]:
    """Tensors in files of ``folder``; every process that maps the same file sees the same values.

    A new file holds zeros and takes no space until it is written.
    """
    tensors = {}
    for name, (dtype, shape) in layout.items():
        count = math.prod(shape)
        if count == 0:
            tensors[name] = torch.zeros(shape, dtype=DTYPES[dtype])
            continue
        path = folder / f"{name}.bin"
        flat = torch.from_file(str(path), shared=True, size=count, dtype=DTYPES[dtype])
        tensors[name] = flat.view(shape)
    return tensors


class Board:
    """Named vectors over a set of tensors.

    weights ``[d]``: the server's model; scored ``[d]``: the one to evaluate
    results ``[R, d]``: the clients' models, one row for each active client
    sent: vectors ``[d]`` of the server; states: ``[R, d]``, what active clients keep
    buffers ``[b]``, buffer_results ``[R, b]``: running statistics, empty for most models
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.weights = tensors["weights"]
        self.scored = tensors["scored"]
        self.results = tensors["results"]
        self.buffers = tensors["buffers"]
        self.buffer_results = tensors["buffer_results"]
        self.sent = _with_prefix(tensors, "sent-")
        self.states = _with_prefix(tensors, "state-")

    @staticmethod
    def layout(
        size: int, buffers: int, rows: int, sent: tuple[str, ...], states: tuple[str, ...]
    ) -> Layout:
        """The tensors of a board for ``rows`` active clients."""
        vector: Layout = dict.fromkeys(("weights", "scored"), ("float32", (size,)))
        vector |= {f"sent-{name}": ("float32", (size,)) for name in sent}
        matrix: Layout = {f"state-{name}": ("float32", (rows, size)) for name in states}
        return (
            vector
            | matrix
            | {
                "results": ("float32", (rows, size)),
                "buffers": ("float64", (buffers,)),
                "buffer_results": ("float64", (rows, buffers)),
            }
        )


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
