"""Kinds that a number of bins describes: ``fft``, the paper's filter, and the paper's controls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch
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
    is_linear = False

    def reference(self, signals: Tensor, parameters: int, spec: FilterSpec) -> Tensor:
        # a power of two keeps every digit, and squares within the range of the dtype
        largest = signals.detach().abs().amax(dim=-1, keepdim=True)
        exponent = torch.where(largest.isfinite(), torch.frexp(largest).exponent, 0)
        given, signals = signals, signals * torch.ldexp(torch.ones_like(largest), -exponent)
        norm = torch.linalg.vector_norm(signals, dim=-1, keepdim=True)
        left = reference.suppress_low(signals, parameters)
        scale = torch.linalg.vector_norm(left, dim=-1, keepdim=True) / norm
        return torch.where(norm > 0, given * scale, given)


class Fft2d(Kind):
    """Zeroes the bins of lowest radius, at least one, of every trailing two-dimensional kernel, but
    of 1x1 kernels none: their only bin is all they have."""

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
        ratio, (height, width) = parameters
        rows = torch.fft.fftfreq(height, dtype=torch.float64)
        columns = torch.fft.rfftfreq(width, dtype=torch.float64)
        radius = (rows[:, None] ** 2 + columns**2).flatten()
        count = max(1, math.floor(ratio * len(radius)))
        keep = torch.ones_like(radius)
        keep[torch.argsort(radius, stable=True)[:count]] = 0  # the first of those equally low
        # a real signal's bins of the first and the middle column come in pairs
        keep = keep.view(height, -1)
        paired = [0, width // 2] if width % 2 == 0 else [0]
        keep[:, paired] *= keep[-torch.arange(height)][:, paired]
        spectrum = torch.fft.rfft2(signals.reshape(-1, height, width))
        kept = spectrum * keep.to(signals)
        return torch.fft.irfft2(kept, s=(height, width)).reshape(signals.shape)
