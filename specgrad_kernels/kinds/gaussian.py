"""``gaussian``: a Gaussian average, cut at four widths, is subtracted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.kinds.base import WIDEST, Kind, LocalAverage, local_average

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec


def _checked_sigma(value: object) -> float | None:
    if value is None:
        return None
    number = float(value) if isinstance(value, (Real, Decimal)) else math.nan
    if not 0 < number <= WIDEST:
        raise ValueError(f"sigma must be positive and at most {WIDEST:,}; got {value!r}")
    return number


class Gaussian(Kind):
    """Subtracts a Gaussian average."""

    name = "gaussian"

    def own_fields(self, spec: FilterSpec) -> dict[str, Any]:
        return {"sigma": _checked_sigma(spec.sigma)}

    def parameters(self, spec: FilterSpec, shape: Sequence[int], index: int) -> float | None:
        return spec.sigma_of(math.prod(shape), index)

    def reference(self, signals: Tensor, parameters: float, spec: FilterSpec) -> Tensor:
        return reference.gaussian_detrend(signals, parameters, spec.boundary)

    def numbers(self, parameters: float, d: int, spec: FilterSpec) -> LocalAverage:
        weights = reference.gaussian_weights(parameters).numpy()
        return local_average(weights[len(weights) // 2 :], spec.boundary, d, box=False)
