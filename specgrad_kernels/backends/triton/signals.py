"""From tensors to signals: where each one starts in memory and how its samples are laid out."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from torch import Tensor

from specgrad_kernels.layout import collapse

MAX_DIMENSIONS = 4
"""Collapsed dimensions that a kernel can walk; a tensor with more is copied."""


@dataclass(frozen=True)
class Signal:
    """One signal: ``index`` of its tensor in the call, first element, and memory layout."""

    index: int
    base: int
    d: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def strided(self) -> bool:
        """Whether sample ``n`` is anywhere but ``n`` elements after the first."""
        return any(size > 1 for size in self.sizes[:-1]) or self.strides[-1] != 1


def can_walk(grad: Tensor, stack_dims: int) -> bool:
    """Whether a kernel can follow the tensor's layout without a copy."""
    sizes, _ = collapse(grad.shape[stack_dims:], grad.stride()[stack_dims:])
    return len(sizes) <= MAX_DIMENSIONS


def signals_of(grad: Tensor, index: int, stack_dims: int) -> list[Signal]:
    """The signals of one tensor: itself, or the entries of its stack."""
    sizes, strides = collapse(grad.shape[stack_dims:], grad.stride()[stack_dims:])
    missing = MAX_DIMENSIONS - len(sizes)
    entries = itertools.product(*(range(size) for size in grad.shape[:stack_dims]))
    return [
        Signal(
            index,
            sum(step * stride for step, stride in zip(entry, grad.stride(), strict=False)),
            math.prod(sizes),
            (1,) * missing + tuple(sizes),
            (0,) * missing + tuple(strides),
        )
        for entry in entries
    ]


def plain_signal(d: int, index: int) -> Signal:
    """A contiguous signal that is a tensor of its own."""
    return Signal(index, 0, d, (1, 1, 1, d), (0, 0, 0, 1))
