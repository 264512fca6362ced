"""Kinds that subtract a local average: ``lap`` (LAP-D), of odd width, and ``gaussian``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from specgrad_kernels import reference
from specgrad_kernels.kinds.base import Kind, LocalAverage, local_average, whole_number

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec

# samples: a trend that is flat over millions is a mean, and its weights would fill the memory
_WIDEST = 1_000_000
_odd_width = whole_number(
    f"a positive odd integer below {_WIDEST:,}", lambda n: 0 < n < _WIDEST and n % 2 == 1
)


def _positive_width(name: str, value: object) -> float:
    number = float(value) if isinstance(value, (Real, Decimal)) else math.nan
    if not 0 < number <= _WIDEST:
        raise ValueError(f"{name} must be positive and at most {_WIDEST:,}; got {value!r}")
    return number


class _Average(Kind):
    """Subtracts an average, which is symmetric where it does not meet an end."""

    def is_symmetric(self, spec: FilterSpec) -> bool:
        return spec.boundary == "circular"


def _half_amplitude(share: float, d: int) -> int:
    """Bins below the frequency, as a share of the highest, at which an average halves."""
    return min(math.floor(share * reference.num_bins(d)), reference.num_bins(d))


class Lap(_Average):
    """Subtracts a moving average."""

    name = "lap"
    own_field = ("window", _odd_width)

    def parameters(self, spec: FilterSpec, shape: Sequence[int], index: int) -> int | None:
        d = math.prod(shape)
        window = spec.window_of(d, index)
        # wider than the signal on both sides changes nothing where only samples inside count
        return min(window, 2 * d - 1) if window and spec.boundary == "count" else window

    def changed_bins(self, spec: FilterSpec, d: int, index: int) -> int:
        if spec.window is None:
            return spec.cutoff(d, index)
        return _half_amplitude(1.2067 / spec.window, d)

    def numbers(self, parameters: int, d: int, spec: FilterSpec) -> LocalAverage:
        weights = np.full(parameters // 2 + 1, 1 / parameters)
        return local_average(weights, spec.boundary, d, box=True)


class Gaussian(_Average):
    """Subtracts a Gaussian average, cut at four widths."""

    name = "gaussian"
    own_field = ("sigma", _positive_width)

    def parameters(self, spec: FilterSpec, shape: Sequence[int], index: int) -> float | None:
        return spec.sigma_of(math.prod(shape), index)

    def changed_bins(self, spec: FilterSpec, d: int, index: int) -> int:
        if spec.sigma is None:
            return spec.cutoff(d, index)
        return _half_amplitude(0.37478 / spec.sigma, d)

    def numbers(self, parameters: float, d: int, spec: FilterSpec) -> LocalAverage:
        weights = reference.gaussian_weights(parameters).numpy()
        return local_average(weights[len(weights) // 2 :], spec.boundary, d, box=False)
