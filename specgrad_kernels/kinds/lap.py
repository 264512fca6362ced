"""``lap``: the local average of odd width is subtracted (LAP-D)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.kinds.base import WIDEST, Kind, LocalAverage, local_average, whole_number

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec

_odd_width = whole_number(
    f"a positive odd integer below {WIDEST:,}", lambda n: 0 < n < WIDEST and n % 2 == 1
)


class Lap(Kind):
    """Subtracts a moving average."""

    name = "lap"

    def own_fields(self, spec: FilterSpec) -> dict[str, Any]:
        return {"window": None if spec.window is None else _odd_width("window", spec.window)}

    def parameters(self, spec: FilterSpec, shape: Sequence[int], index: int) -> int | None:
        d = math.prod(shape)
        window = spec.window_of(d, index)
        # wider than the signal on both sides changes nothing where only samples inside count
        return min(window, 2 * d - 1) if window and spec.boundary == "count" else window

    def reference(self, signals: Tensor, parameters: int, spec: FilterSpec) -> Tensor:
        return reference.lap_detrend(signals, parameters, spec.boundary)

    def numbers(self, parameters: int, d: int, spec: FilterSpec) -> LocalAverage:
        weights = np.full(parameters // 2 + 1, 1 / parameters)
        return local_average(weights, spec.boundary, d, box=True)
