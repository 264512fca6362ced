"""``centralize``: the mean of each group of samples is subtracted (gradient centralisation).

A group is what follows the first ``group_dims`` dimensions: one output filter by default. Its
mean is bin 0 of its spectrum, so backends receive it as signals of one group each that lose their
first bin. A group of one sample is left alone: its mean is all it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from specgrad_kernels.kinds.base import Bins, Kind, natural_number

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec


_MOST_INNER = 64  # as kMostSlots in csrc/mean.h
_SHORT = 32


def row_of(shape: Sequence[int]) -> tuple[int, int]:
    """Columns of a row and samples of a column, in whose order a mean is summed.

    The last dimensions as far as they are small, such as a kernel's, and the one before them.

    >>> row_of((64, 3, 3)), row_of((16, 64, 3, 3)), row_of((4096, 1000)), row_of((3, 3))
    ((64, 9), (64, 9), (1000, 1), (9, 1))
    """
    if math.prod(shape) <= _SHORT:
        return math.prod(shape), 1
    dims = [size for size in shape if size > 1]
    inner = 1
    while len(dims) > 1 and inner * dims[-1] <= _MOST_INNER:
        inner *= dims.pop()
    return dims[-1], inner


class Centralize(Kind):
    """Subtracts means."""

    name = "centralize"
    own_field = ("group_dims", natural_number)

    def check(self, spec: FilterSpec) -> None:
        moves_samples = isinstance(spec.order, tuple) or str(spec.order).startswith("random")
        if moves_samples and spec.group_dims:
            raise ValueError(
                f"order must permute axes where group_dims={spec.group_dims} counts them; "
                f"got {spec.order!r}"
            )

    def stack_dims(self, spec: FilterSpec, dims: int) -> int:
        return min(spec.batch_dims + spec.group_dims, dims)

    def changed_bins(self, spec: FilterSpec, d: int, index: int) -> int:
        return int(d > 1)

    def parameters(
        self, spec: FilterSpec, shape: Sequence[int], index: int
    ) -> tuple[int, int] | None:
        return row_of(shape) if math.prod(shape) > 1 else None

    def reference(self, signals: Tensor, parameters: tuple[int, int], spec: FilterSpec) -> Tensor:
        return signals - signals.mean(dim=-1, keepdim=True)

    def numbers(self, parameters: tuple[int, int], d: int, spec: FilterSpec) -> Bins:
        return Bins(np.ones(1), parameters)
