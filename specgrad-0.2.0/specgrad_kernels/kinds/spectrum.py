"""``spectrum``: every bin is multiplied by a gain, given as a few breakpoints over frequency.

A soft edge, a low-pass, a band-pass; ``fft`` is the step from 0 to 1. Where all gains are 1 above
some frequency, only the band below it is computed, as for ``fft``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from specgrad_kernels.kinds.base import Array, Bins, Kind

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec

Breakpoints = tuple[tuple[float, float], ...]


def _checked_gains(name: str, value: Any) -> Breakpoints:
    try:
        points = [(frequency, gain) for frequency, gain in value]
    except (TypeError, ValueError):
        points = []
    numbers = [number for point in points for number in point]
    valid = all(isinstance(number, Real) and 0 <= float(number) < math.inf for number in numbers)
    if not (points and valid and all(frequency <= 1 for frequency, _ in points)):
        raise ValueError(
            f"{name} must be pairs of a frequency in [0, 1] and a gain of 0 or more; got {value!r}"
        )
    if any(left > right for (left, _), (right, _) in pairwise(points)):
        raise ValueError(f"{name} must be given in the order of their frequencies; got {value!r}")
    return tuple((float(frequency), float(gain)) for frequency, gain in points)


def gains_of(points: Breakpoints, d: int) -> Array:
    """The gain of each rFFT bin of ``d`` samples.

    Linear between breakpoints and constant before the first and after the last; of two at the
    same frequency, the second holds from there on.

    >>> gains_of(((0.5, 0.0), (0.5, 1.0)), 8)             # bins at 0, 1/4, 1/2, 3/4, 1
    array([0., 0., 1., 1., 1.])
    """
    frequencies, gains = zip(*points, strict=True)
    bins = np.arange(d // 2 + 1)
    return np.interp(2 * bins / d, frequencies, gains)


class Spectrum(Kind):
    """Multiplies the spectrum."""

    name = "spectrum"
    own_field = ("gains", _checked_gains)

    def check(self, spec: FilterSpec) -> None:
        if spec.gains is None:
            raise ValueError(
                "method 'spectrum' needs gains, such as gains=[(0, 0), (0.1, 1)]; got None"
            )

    def changed_bins(self, spec: FilterSpec, d: int, index: int) -> int:
        return len(np.trim_zeros(1 - gains_of(tuple(spec.gains or ()), d), "b"))

    def parameters(self, spec: FilterSpec, shape: Sequence[int], index: int) -> Breakpoints | None:
        points: Breakpoints = tuple(spec.gains or ())
        return points if np.any(gains_of(points, math.prod(shape)) != 1) else None

    def numbers(self, parameters: Breakpoints, d: int, spec: FilterSpec) -> Bins:
        return Bins(1 - gains_of(parameters, d))
