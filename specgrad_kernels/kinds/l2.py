"""``l2``: only the length becomes that of what ``fft`` leaves (a control of the paper)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.kinds.base import ByCutoff

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec


class L2(ByCutoff):
    """Keeps the direction and takes the length of what ``fft`` leaves."""

    name = "l2"
    linear = False

    def reference(self, signals: Tensor, parameters: int, spec: FilterSpec) -> Tensor:
        return reference.rescale_l2(signals, parameters)
