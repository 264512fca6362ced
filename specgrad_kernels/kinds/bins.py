"""Kinds that a number of bins describes: ``fft``, the paper's filter, and the paper's controls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.kinds.base import Bins, Kind, whole_number

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec


class _ByCutoff(Kind):
    """Their parameter is the number of bins."""

    def parameters(self, spec: FilterSpec, shape: Sequence[int], index: int) -> int | None:
        return spec.cutoff(math.prod(shape), index) or None


class Fft(_ByCutoff):
    """Zeroes the first bins."""

    name = "fft"

    def reference(self, signals: Tensor, parameters: int, spec: FilterSpec) -> Tensor:
        return reference.suppress_low(signals, parameters)

    def numbers(self, parameters: int, d: int, spec: FilterSpec) -> Bins:
        return Bins(np.ones(parameters))


class FftHigh(_ByCutoff):
    """Zeroes the last bins."""

    name = "fft_high"

    def numbers(self, parameters: int, d: int, spec: FilterSpec) -> Bins:
        removed = np.zeros(reference.num_bins(d))
        removed[-parameters:] = 1
        return Bins(removed)


class RandomBins(_ByCutoff):
    """Zeroes bins drawn from ``seed``."""

    name = "random"
    own_field = ("seed", whole_number("an integer", lambda n: True))

    def numbers(self, parameters: int, d: int, spec: FilterSpec) -> Bins:
        removed = np.zeros(reference.num_bins(d))
        removed[reference.random_bins(d, parameters, spec.seed).numpy()] = 1
        return Bins(removed)


class L2(_ByCutoff):
    """Keeps the direction and takes the length of what ``fft`` leaves."""

    name = "l2"
    linear = False

    def reference(self, signals: Tensor, parameters: int, spec: FilterSpec) -> Tensor:
        return reference.rescale_l2(signals, parameters)


class Fft2d(Kind):
    """Zeroes the lowest bins of every trailing two-dimensional kernel, but of 1x1 kernels none:
    their only bin is all they have."""

    name = "fft2d"

    def check_shape(self, spec: FilterSpec, shape: Sequence[int]) -> str | None:
        return None if len(shape) >= spec.batch_dims + 2 else "fft2d needs two kernel dimensions"

    def parameters(
        self, spec: FilterSpec, shape: Sequence[int], index: int
    ) -> tuple[Fraction, tuple[int, ...]] | None:
        kernel = tuple(shape[-2:])
        if not spec.cutoff(math.prod(shape), index) or math.prod(kernel) == 1:
            return None
        return spec.ratio_of(index), kernel

    def reference(
        self, signals: Tensor, parameters: tuple[Fraction, tuple[int, ...]], spec: FilterSpec
    ) -> Tensor:
        ratio, kernel = parameters
        kernels = signals.reshape(*signals.shape[:-1], -1, *kernel)
        return reference.suppress_2d(kernels, ratio).reshape(signals.shape)
