"""``fft2d``: the lowest bins of each two-dimensional kernel are zeroed (a control of the paper)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.kinds.base import Kind

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec


class Fft2d(Kind):
    """Zeroes the lowest bins of every trailing two-dimensional kernel, but of 1x1 kernels none:
    their only bin is all they have."""

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
        ratio, kernel = parameters
        kernels = signals.reshape(*signals.shape[:-1], -1, *kernel)
        return reference.suppress_2d(kernels, ratio).reshape(signals.shape)
