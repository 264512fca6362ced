"""Base class of filter kinds, and the numbers that backends receive.

A kind is a class with one instance in a file of this package. It checks its own fields of a
``FilterSpec``, has its equation in plain PyTorch, and, where backends can compute it, the numbers
they need. Backends ask for numbers and know no kind by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgrad_kernels import reference

if TYPE_CHECKING:
    from specgrad_kernels.spec import FilterSpec

Array = NDArray[np.float64]
BOUNDARIES = ("count", "circular", "reflect", "replicate")


@dataclass(frozen=True)
class Bins:
    """Take ``removed`` of the first rFFT bins out of a signal; later bins are kept."""

    removed: Array
    row: tuple[int, int] | None = None
    """A mean, summed by rows of so many columns of so many samples."""

    @property
    def norm(self) -> float:
        """Largest factor by which a gradient can grow."""
        return max(1.0, float(np.max(np.abs(1 - self.removed), initial=0.0)))

    def equation(self, signals: Tensor) -> Tensor:
        """Filter ``[count, d]`` signals in plain PyTorch."""
        return reference.scale_bins(signals, torch.from_numpy(1 - self.removed))


@dataclass(frozen=True)
class LocalAverage:
    """Subtract an average: symmetric ``weights`` at distances 0, 1, ..., equal ones if ``box``."""

    weights: Array
    boundary: str
    box: bool

    @property
    def radius(self) -> int:
        """Samples that it reaches on each side."""
        return len(self.weights) - 1

    @property
    def norm(self) -> float:
        """Upper bound on the factor by which a gradient can grow."""
        if self.boundary == "circular" and self.radius <= 4096:
            one_side = np.fft.rfft(self.weights, n=32 * len(self.weights)).real
            kept = 1 - (2 * one_side - self.weights[0])
            # between the points it can be that much more
            return max(1.0, 1.005 * float(np.abs(kept).max()))
        # the rows of an average sum to 1; its columns do not near the ends, where samples stand
        # for those that are missing
        beyond = np.cumsum(self.weights[::-1])[::-1]
        heaviest = {
            "circular": 1.0,
            "count": 1.25,
            "reflect": 2.0,
            "replicate": 1 + float(beyond[1:].sum()),
        }
        return 1 + math.sqrt(heaviest[self.boundary])

    def equation(self, signals: Tensor) -> Tensor:
        """Filter ``[count, d]`` signals in plain PyTorch."""
        both_sides = np.concatenate([self.weights[:0:-1], self.weights])
        return signals - reference.smooth(signals, torch.from_numpy(both_sides), self.boundary)


def local_average(weights: Array, boundary: str, d: int, box: bool) -> LocalAverage:
    """An average over ``d`` samples. A reflection that would reach beyond them is a replication,
    and where only samples inside count, none is further away than the other end."""
    if boundary == "reflect" and len(weights) > d:
        boundary = "replicate"
    if boundary == "count" and len(weights) > d:
        weights = weights[:d] / (2 * weights[:d].sum() - weights[0])  # an average again
    return LocalAverage(weights, boundary, box)


Numbers = Bins | LocalAverage


class Kind:
    """One kind of filter; subclasses say what differs."""

    name: str
    own_field: tuple[str, Callable[[str, Any], Any]] | None = None
    """The field of a spec that belongs to this kind, and its check, which converts the value."""

    @property
    def has_kernel(self) -> bool:
        """True where backends can compute it, false where only the equation exists."""
        return type(self).numbers is not Kind.numbers

    is_linear = True

    def is_symmetric(self, spec: FilterSpec) -> bool:
        """True where a linear filter is its own transpose."""
        return True

    def check(self, spec: FilterSpec) -> None:
        """Refuse fields that do not fit each other."""

    def check_shape(self, spec: FilterSpec, shape: Sequence[int]) -> str | None:
        """Why a tensor of this shape cannot be filtered."""
        return None

    def stack_dims(self, spec: FilterSpec, dims: int) -> int:
        """Leading dimensions of a tensor that number its signals, each filtered on its own."""
        return spec.batch_dims

    def changed_bins(self, spec: FilterSpec, d: int, index: int) -> int:
        """Bins of ``d`` samples up to the last that changes, or that an average halves."""
        return spec.cutoff(d, index)

    def parameters(self, spec: FilterSpec, shape: Sequence[int], index: int) -> Hashable:
        """Parameters of the equation for a signal of this shape, ``None`` for the identity."""
        raise NotImplementedError

    def reference(self, signals: Tensor, parameters: Any, spec: FilterSpec) -> Tensor:
        """The equation for ``[count, d]`` signals: that of the numbers, where there are any."""
        numbers = self.numbers(parameters, signals.shape[-1], spec)
        if numbers is None:
            raise NotImplementedError
        return numbers.equation(signals)

    def numbers(self, parameters: Any, d: int, spec: FilterSpec) -> Numbers | None:
        """Numbers that backends compute with; ``None`` where only the equation exists."""
        return None


def whole_number(kind: str, valid: Callable[[int], bool]) -> Callable[[str, object], int]:
    """A check for an int, a numpy integer or a whole float."""

    def check(name: str, value: object) -> int:
        whole = isinstance(value, Integral) or (isinstance(value, Real) and value % 1 == 0)
        if not (whole and valid(int(value))):  # type: ignore[call-overload]
            raise ValueError(f"{name} must be {kind}; got {value!r}")
        return int(value)  # type: ignore[call-overload]

    return check


natural_number = whole_number("a non-negative integer", lambda n: n >= 0)


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse what is not among the names allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
