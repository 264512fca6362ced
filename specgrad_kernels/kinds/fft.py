"""``fft``: the lowest bins of the spectrum are zeroed (the paper's filter)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.kinds.base import Bins, Kind

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec


class ByCutoff(Kind):
    """Kinds that a number of bins describes."""

    def parameters(self, spec: FilterSpec, shape: Sequence[int], index: int) -> int | None:
        return spec.cutoff(math.prod(shape), index) or None


class Fft(ByCutoff):
    """Zeroes the first bins."""

    name = "fft"

    def reference(self, signals: Tensor, parameters: int, spec: FilterSpec) -> Tensor:
        return reference.suppress_low(signals, parameters)

    def numbers(self, parameters: int, d: int, spec: FilterSpec) -> Bins:
        return Bins(np.ones(parameters))
