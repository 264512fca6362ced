"""What to filter: one validated, hashable description shared by every backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from numbers import Integral, Real

from specgrad_kernels import reference

FUSED_METHODS = ("fft", "lap", "gaussian")
CONTROL_METHODS = ("fft_high", "random", "l2", "fft2d")
METHODS = FUSED_METHODS + CONTROL_METHODS
BOUNDARIES = ("count", "circular", "reflect", "replicate")
STRATEGIES = ("auto", "dense", "band", "full")
NONFINITE = ("propagate", "raise")

Ratio = reference.Ratio
# samples: a trend that is flat over millions is a mean, and its weights would fill the memory
WIDEST = 1_000_000


def _one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def _checked_ratio(value: Ratio) -> Fraction:
    try:
        ratio = reference.exact_ratio(value)
    except (ValueError, OverflowError, TypeError, ZeroDivisionError):
        raise ValueError(f"ratio must be a number in [0, 1); got {value!r}") from None
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio must lie in [0, 1); got {value!r}")
    if ratio.denominator >= 2**53:
        ratio = ratio.limit_denominator(2**52)
    return ratio


def _checked_integer(name: str, value: object, kind: str, valid: Callable[[int], bool]) -> int:
    """The integer that an int, a numpy integer or a whole float stands for."""
    whole = isinstance(value, Integral) or (isinstance(value, Real) and value % 1 == 0)
    if not (whole and valid(int(value))):  # type: ignore[call-overload]
        raise ValueError(f"{name} must be {kind}; got {value!r}")
    return int(value)  # type: ignore[call-overload]


def _checked_sigma(value: object) -> float:
    number = float(value) if isinstance(value, (Real, Decimal)) else math.nan
    if not 0 < number <= WIDEST:
        raise ValueError(f"sigma must be positive and at most {WIDEST:,}; got {value!r}")
    return number


@dataclass(frozen=True, eq=False)
class FilterSpec:
    """Which filter, how strong, and how a tensor becomes a signal.

    method: ``fft``, ``lap``, ``gaussian``, or a control: ``fft_high``, ``random``, ``l2``,
        ``fft2d``.
    ratio: share of the rFFT bins to suppress, in [0, 1); one number, or one per tensor. It
        is taken as the decimal that was written, so ``0.29`` is exactly 29/100. A tensor
        whose cutoff is 0 is left alone, unless ``window`` or ``sigma`` gives a width.
    window, sigma: width of ``lap`` (odd) and ``gaussian``; by default from ``ratio``.
    boundary: ``count`` (zero padding, divided by the weights inside), ``circular``,
        ``reflect``, ``replicate``; used by ``lap`` and ``gaussian``.
    order: flattening order. ``None`` is the tensor's own; ``"0231"`` permutes the axes first;
        ``"random:7"`` permutes the samples by seed 7 and the length; a sequence of integers
        is such a permutation itself.
    batch_dims: this many leading dimensions are a stack, each entry filtered on its own.
    nonfinite: ``propagate`` (an FFT spreads a NaN over its tensor) or ``raise``.
    strategy: how ``fft`` is computed on the CPU: ``auto``, ``dense``, ``band``, ``full``.
    seed: draws the bins of ``random``.

    >>> FilterSpec(ratio=0.1).cutoff(36864)
    1843
    """

    method: str = "fft"
    ratio: Ratio | Sequence[Ratio] = 0.05
    window: int | None = None
    sigma: float | None = None
    boundary: str = "count"
    order: str | Sequence[int] | None = None
    batch_dims: int = 0
    nonfinite: str = "propagate"
    strategy: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("method", self.method, METHODS)
        _one_of("boundary", self.boundary, BOUNDARIES)
        _one_of("nonfinite", self.nonfinite, NONFINITE)
        _one_of("strategy", self.strategy, STRATEGIES)
        if isinstance(self.ratio, Sequence) and not isinstance(self.ratio, str):
            object.__setattr__(self, "ratio", tuple(_checked_ratio(r) for r in self.ratio))
        else:
            object.__setattr__(self, "ratio", _checked_ratio(self.ratio))
        checked: dict[str, object] = {
            "batch_dims": _checked_integer(
                "batch_dims", self.batch_dims, "a non-negative integer", lambda n: n >= 0
            ),
            "seed": _checked_integer("seed", self.seed, "an integer", lambda n: True),
        }
        if self.window is not None:
            checked["window"] = _checked_integer(
                "window",
                self.window,
                f"a positive odd integer below {WIDEST:,}",
                lambda n: 0 < n < WIDEST and n % 2 == 1,
            )
        if self.sigma is not None:
            checked["sigma"] = _checked_sigma(self.sigma)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if isinstance(self.order, str):
            _check_order(self.order)
        elif self.order is not None:
            permutation = tuple(int(i) for i in self.order)
            if sorted(permutation) != list(range(len(permutation))):
                raise ValueError("order must hold every index from 0 to its length - 1 once")
            object.__setattr__(self, "order", permutation)

    # Specs are looked up on every call, so comparing them must cost next to nothing.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FilterSpec):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: the hash of a text is another one in every process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _identity(self) -> tuple[str, str | Sequence[int] | None]:
        return self.text, self.order

    @cached_property
    def _hash(self) -> int:
        return hash(self._identity)

    def ratio_of(self, index: int) -> Fraction:
        """The ratio of the ``index``-th tensor."""
        return self.ratio[index] if isinstance(self.ratio, tuple) else self.ratio  # type: ignore[return-value]

    def check_count(self, tensors: int) -> None:
        """One ratio per tensor must mean exactly that."""
        if isinstance(self.ratio, tuple) and len(self.ratio) != tensors:
            raise ValueError(
                f"ratio has {len(self.ratio)} entries for {tensors} tensors; "
                "give one number, or one per tensor"
            )

    def cutoff(self, d: int, index: int = 0) -> int:
        """Suppressed rFFT bins of a signal of ``d`` samples."""
        return reference.cutoff(self.ratio_of(index), d)

    def window_of(self, d: int, index: int = 0) -> int | None:
        """Width of the ``lap`` average, ``None`` where the tensor is left alone."""
        if self.window is not None:
            return self.window
        return reference.default_window(self.ratio_of(index)) if self.cutoff(d, index) else None

    def sigma_of(self, d: int, index: int = 0) -> float | None:
        """Width of the Gaussian, ``None`` where the tensor is left alone."""
        if self.sigma is not None:
            return self.sigma
        return reference.default_sigma(self.ratio_of(index)) if self.cutoff(d, index) else None

    def select(self, indices: Sequence[int]) -> FilterSpec:
        """The spec for a part of the tensors it was written for."""
        if not isinstance(self.ratio, tuple):
            return self
        return replace(self, ratio=tuple(self.ratio[i] for i in indices))

    @cached_property
    def text(self) -> str:
        """The form in which the spec crosses the operator's schema; ``parse`` reads it back."""
        ratios = self.ratio if isinstance(self.ratio, tuple) else (self.ratio,)
        joined = ",".join(f"{r.numerator}/{r.denominator}" for r in map(Fraction, ratios))
        items = {
            "method": self.method,
            "ratios": joined if isinstance(self.ratio, tuple) else "",
            "ratio": "" if isinstance(self.ratio, tuple) else joined,
            "window": "" if self.window is None else str(self.window),
            "sigma": "" if self.sigma is None else repr(float(self.sigma)),
            "boundary": self.boundary,
            "batch_dims": str(self.batch_dims),
            "nonfinite": self.nonfinite,
            "strategy": self.strategy,
            "seed": str(self.seed),
        }
        return ";".join(f"{key}={value}" for key, value in items.items())

    @staticmethod
    def parse(text: str) -> FilterSpec:
        """Inverse of ``text``. The order is not part of it: views are permuted before the op."""
        items = dict(item.split("=", 1) for item in text.split(";"))
        ratio: Ratio | tuple[Ratio, ...] = items["ratio"]
        if items["ratios"]:
            ratio = tuple(items["ratios"].split(","))
        elif not items["ratio"]:
            ratio = ()
        return FilterSpec(
            method=items["method"],
            ratio=ratio,
            window=int(items["window"]) if items["window"] else None,
            sigma=float(items["sigma"]) if items["sigma"] else None,
            boundary=items["boundary"],
            batch_dims=int(items["batch_dims"]),
            nonfinite=items["nonfinite"],
            strategy=items["strategy"],
            seed=int(items["seed"]),
        )


def _check_order(order: str) -> None:
    name, _, seed = order.partition(":")
    if name == "random" and (seed.isdigit() or not seed):
        return
    if not order.isdigit() or sorted(order) != [str(i) for i in range(len(order))]:
        raise ValueError(
            f"order must permute the axes, such as '0231', or be 'random:SEED'; got {order!r}"
        )
