"""Runs the programs of an interpreted launch in another order.

The interpreter goes through a grid from first to last, so a kernel that reads what a neighbour
writes passes by luck. Here every launch sees its program numbers permuted.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

from triton.runtime.interpreter import interpreter_builder


@contextlib.contextmanager
def program_order(order: str | int) -> Iterator[None]:
    """``"reversed"``, or a seed for a random permutation of every launch."""
    builder = interpreter_builder
    set_dim, set_index = builder.set_grid_dim, builder.set_grid_idx
    permutation: list[int] = []

    def permuted_dim(x: int, y: int, z: int) -> None:
        permutation[:] = range(x)
        if order == "reversed":
            permutation.reverse()
        else:
            random.Random(order).shuffle(permutation)
        set_dim(x, y, z)

    def permuted_index(x: int, y: int, z: int) -> None:
        set_index(permutation[x], y, z)

    builder.set_grid_dim, builder.set_grid_idx = permuted_dim, permuted_index
    try:
        yield
    finally:
        del builder.set_grid_dim, builder.set_grid_idx
