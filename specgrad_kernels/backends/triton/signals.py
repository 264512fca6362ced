"""Signals: what each one loses and by which way, where it lies in memory, how it is laid out."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from specgrad_kernels.backends.triton import numbers
from specgrad_kernels.backends.triton.grid import Grid, plan_grid
from specgrad_kernels.design import Array
from specgrad_kernels.kinds import Bins, LocalAverage, Numbers
from specgrad_kernels.layout import collapse
from specgrad_kernels.spec import FilterSpec

MAX_LENGTH = 1 << 29
"""Longest signal whose arithmetic stays within 32 bits."""
MAX_DIMENSIONS = 4
"""Collapsed dimensions that a kernel can walk; a tensor with more is copied."""


@dataclass(frozen=True)
class Loss:
    """What a signal of ``d`` samples loses; equal ones share their tables."""

    d: int
    parameters: Hashable
    double: bool
    wanted: Numbers | None = field(compare=False)

    @cached_property
    def removed(self) -> Array:
        """What is taken out of the first bins, up to the last of which something is."""
        assert isinstance(self.wanted, Bins)
        return np.trim_zeros(self.wanted.removed, "b")

    @cached_property
    def grid(self) -> Grid | None:
        """The grid on which its band is solved."""
        return plan_grid(self.d, len(self.removed), self.double)

    @cached_property
    def gains(self) -> Array:
        """What the bins of its grid are multiplied by."""
        assert self.grid is not None
        return numbers.gains(self.grid, self.removed)

    @property
    def strategy(self) -> str:
        """``identity``, ``means``, ``detrend``, ``band`` or ``stacked`` (PyTorch, by length)."""
        if self.wanted is None or self.d > MAX_LENGTH:
            return "identity" if self.wanted is None else "stacked"
        if isinstance(self.wanted, LocalAverage):
            return "detrend"
        if len(self.removed) == 1 and self.removed[0] == 1:
            return "means"
        return "stacked" if self.grid is None else "band"


def loss_of(spec: FilterSpec, d: int, index: int, double: bool) -> Loss:
    """What the signals of ``d`` samples in tensor ``index`` of a call lose."""
    parameters = spec.kind.parameters(spec, (d,), index) if d else None
    wanted = None if parameters is None else spec.kind.numbers(parameters, d, spec)
    return Loss(d, parameters, double, wanted)


@dataclass(frozen=True)
class Signal:
    """``d`` samples of tensor ``index`` of a call, and their row of the table of layouts."""

    index: int
    d: int
    layout: tuple[int, ...]


def signals_of(grad: Tensor, index: int, stack_dims: int) -> list[Signal]:
    """The signals of one tensor: itself, or the entries of its stack.

    None where no kernel can follow the tensor's layout without a copy.
    """
    sizes, strides = collapse(grad.shape[stack_dims:], grad.stride()[stack_dims:])
    missing = MAX_DIMENSIONS - len(sizes)
    if missing < 0:
        return []
    walk = [*([1] * missing + sizes)[1:], *[0] * missing, *strides]
    entries = itertools.product(*(range(size) for size in grad.shape[:stack_dims]))
    bases = (sum(map(operator.mul, entry, grad.stride())) for entry in entries)
    return [Signal(index, math.prod(sizes), (base, *walk)) for base in bases]


def plain_signal(d: int, index: int) -> Signal:
    """A contiguous signal that is a tensor of its own: sample ``n`` is ``n`` elements on."""
    return Signal(index, d, (0, 1, 1, d, 0, 0, 0, 1))
