"""From tensors to signals: where each one starts in memory and how its samples are laid out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from torch import Tensor

from specgrad_kernels.layout import collapse, signal_length

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
    group: int = 0
    """Samples of which each mean is taken, for filters that take means."""

    @property
    def strided(self) -> bool:
        """Whether sample ``n`` is anywhere but ``n`` elements after the first."""
        return any(size > 1 for size in self.sizes[:-1]) or self.strides[-1] != 1


def can_walk(grad: Tensor, batch_dims: int) -> bool:
    """Whether a kernel can follow the tensor's layout without a copy."""
    sizes, _ = collapse(grad.shape[batch_dims:], grad.stride()[batch_dims:])
    return len(sizes) <= MAX_DIMENSIONS


def signals_of(grad: Tensor, index: int, batch_dims: int, group: int = 0) -> list[Signal]:
    """The signals of one tensor: itself, or the entries of its stack."""
    sizes, strides = collapse(grad.shape[batch_dims:], grad.stride()[batch_dims:])
    missing = MAX_DIMENSIONS - len(sizes)
    d = signal_length(grad.shape, batch_dims)
    entries = itertools.product(*(range(size) for size in grad.shape[:batch_dims]))
    return [
        Signal(
            index,
            sum(step * stride for step, stride in zip(entry, grad.stride(), strict=False)),
            d,
            (1,) * missing + tuple(sizes),
            (0,) * missing + tuple(strides),
            group,
        )
        for entry in entries
    ]
