"""``random``: as many bins as ``fft`` zeroes, drawn from ``seed`` (a control of the paper)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.kinds.base import Bins, ByCutoff, whole_number

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec

_any_integer = whole_number("an integer", lambda n: True)


class RandomBins(ByCutoff):
    """Zeroes bins drawn from ``seed``."""

    name = "random"

    def own_fields(self, spec: FilterSpec) -> dict[str, Any]:
        return {"seed": _any_integer("seed", spec.seed)}

    def reference(self, signals: Tensor, parameters: int, spec: FilterSpec) -> Tensor:
        return reference.suppress_random(signals, parameters, spec.seed)

    def numbers(self, parameters: int, d: int, spec: FilterSpec) -> Bins:
        removed = np.zeros(reference.num_bins(d))
        removed[reference.random_bins(d, parameters, spec.seed).numpy()] = 1
        return Bins(removed)
