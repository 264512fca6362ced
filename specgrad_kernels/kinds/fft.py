"""``fft``: the lowest bins of the spectrum are zeroed (the paper's filter)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.kinds.base import Bins, ByCutoff

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec


class Fft(ByCutoff):
    """Zeroes the first bins."""

    name = "fft"

    def reference(self, signals: Tensor, parameters: int, spec: FilterSpec) -> Tensor:
        return reference.suppress_low(signals, parameters)

    def numbers(self, parameters: int, d: int, spec: FilterSpec) -> Bins:
        return Bins(np.ones(parameters))
