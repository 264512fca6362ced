"""``fft_high``: the highest bins are zeroed (a control of the paper)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.kinds.base import Bins, ByCutoff

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec


class FftHigh(ByCutoff):
    """Zeroes the last bins."""

    name = "fft_high"

    def reference(self, signals: Tensor, parameters: int, spec: FilterSpec) -> Tensor:
        return reference.suppress_high(signals, parameters)

    def numbers(self, parameters: int, d: int, spec: FilterSpec) -> Bins:
        removed = np.zeros(reference.num_bins(d))
        removed[-parameters:] = 1
        return Bins(removed)
