"""Signals of a call: the band or average removed from each, and their memory layout."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from specgrad_kernels.backends.triton import tables
from specgrad_kernels.backends.triton.coarse_grid import CoarseGrid, plan_grid
from specgrad_kernels.design import Array
from specgrad_kernels.kinds import Bins, Numbers
from specgrad_kernels.layout import collapse
from specgrad_kernels.spec import FilterSpec

MAX_LENGTH = 1 << 29
"""Longest signal whose arithmetic stays within 32 bits."""
MAX_DIMENSIONS = 4
"""Collapsed dimensions that a kernel can walk; a tensor with more is copied."""


@dataclass(frozen=True)
class Removal:
    """Band or average removed from signals of one length; equal ones share their tables."""

    d: int
    key: Hashable
    double: bool
    wanted: Numbers | None = field(compare=False)
    removed: Array | None = field(default=None, compare=False)
    """Share that is taken out of each of the first bins, up to the last that changes."""
    grid: CoarseGrid | None = field(default=None, compare=False)
    """The grid on which the band is filtered."""
    index: int = field(default=0, compare=False)
    """A tensor of the call that it applies to."""

    @cached_property
    def gains(self) -> Array:
        """Gains of the bins of its grid."""
        assert self.grid is not None
        assert self.removed is not None
        return tables.gains(self.grid, self.removed)

    @property
    def strategy(self) -> str:
        """``identity``, ``means``, ``detrend``, ``band`` or ``stacked`` (PyTorch, by length)."""
        if self.wanted is None or self.d > MAX_LENGTH:
            return "identity" if self.wanted is None else "stacked"
        if self.removed is None:
            return "detrend"
        if len(self.removed) == 1 and self.removed[0] == 1:
            return "means"
        return "stacked" if self.grid is None else "band"

    def describe(self) -> str:
        """Strategy, and the factors of its grid or its length."""
        if self.strategy == "band" and self.grid is not None:
            return self.grid.describe()
        return f"{self.strategy} of {self.d}"


def removal_of(spec: FilterSpec, d: int, index: int, double: bool) -> Removal:
    """Find what a filter removes from signals of ``d`` samples in tensor ``index`` of a call."""
    key = spec.kind.parameters(spec, (d,), index) if d else None
    wanted = None if key is None else spec.kind.numbers(key, d, spec)
    if not isinstance(wanted, Bins):
        return Removal(d, key, double, wanted, index=index)
    removed = np.trim_zeros(wanted.removed, "b")
    only_mean = len(removed) == 1 and removed[0] == 1
    grid = None if only_mean or d > MAX_LENGTH else plan_grid(d, len(removed), double)
    return Removal(d, key, double, wanted, removed, grid, index)


@dataclass(frozen=True)
class Signal:
    """``d`` samples of tensor ``index`` of a call, and their row of the table of layouts."""

    index: int
    d: int
    layout: tuple[int, ...]


def signals_of(grad: Tensor, index: int, stack_dims: int) -> list[Signal]:
    """Return the signals of one tensor: itself, or the entries of its stack.

    An empty list where no kernel can follow the tensor's layout without a copy.
    """
    sizes, strides = collapse(grad.shape[stack_dims:], grad.stride()[stack_dims:])
    missing = MAX_DIMENSIONS - len(sizes)
    if missing < 0:
        return []
    walk = [*([1] * missing + sizes)[1:], *[0] * missing, *strides]
    entries = itertools.product(*(range(size) for size in grad.shape[:stack_dims]))
    bases = (sum(map(operator.mul, entry, grad.stride())) for entry in entries)
    return [Signal(index, math.prod(sizes), (base, *walk)) for base in bases]


def contiguous_signal(d: int, index: int) -> Signal:
    """A contiguous signal that is a tensor of its own: sample ``n`` is ``n`` elements on."""
    return Signal(index, d, (0, 1, 1, d, 0, 0, 0, 1))
