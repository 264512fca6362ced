"""FilterSpec: one validated, hashable description of a filter, shared by every backend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from specgrad_kernels import reference
from specgrad_kernels.design import STRATEGIES
from specgrad_kernels.kinds import BOUNDARIES, KINDS, METHODS, Kind
from specgrad_kernels.kinds.base import natural_number, one_of

NONFINITE = ("propagate", "raise")

Ratio = reference.Ratio


def _checked_ratio(value: Ratio) -> Fraction:
    try:
        ratio = reference.exact_ratio(value)
    except (ValueError, OverflowError, TypeError, ZeroDivisionError):
        raise ValueError(f"ratio must be a number in [0, 1); got {value!r}") from None
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio must lie in [0, 1); got {value!r}")
    if ratio.denominator >= 2**53:
        ratio = min(ratio.limit_denominator(2**52), 1 - Fraction(1, 2**52))
    return ratio


@dataclass(frozen=True, eq=False)
class FilterSpec:
    """Which filter, how strong, and how a tensor becomes a signal.

    method: the name of a kind: ``fft``, ``lap``, ``gaussian``, ``centralize``, ``spectrum``,
        or a control: ``fft_high``, ``random``, ``l2``, ``fft2d`` (which leaves 1x1 kernels alone).
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
    group_dims: of ``centralize``: leading dimensions that number the groups whose means are
        subtracted: 1 for each output filter, 2 for each kernel, 0 for the whole tensor.
    gains: of ``spectrum``: breakpoints of a frequency, as a share of the highest (Nyquist), and
        a gain; linear between them, a step where a frequency is repeated.

    ``text`` is the spec as JSON: method, ratio and what is not the default. It is the same in
    every process, and ``FilterSpec.from_text`` reads it.

    >>> FilterSpec("lap", window=5).text
    '{"method": "lap", "ratio": "1/20", "window": 5}'
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
    group_dims: int = 1
    gains: Sequence[tuple[float, float]] | None = None
    text: ClassVar[str]  # of each spec, made from its fields; no field itself

    def __post_init__(self) -> None:
        one_of("method", self.method, METHODS)
        one_of("boundary", self.boundary, BOUNDARIES)
        one_of("nonfinite", self.nonfinite, NONFINITE)
        one_of("strategy", self.strategy, STRATEGIES)
        for name in ("ratio", "gains"):
            object.__setattr__(self, name, as_tuples(getattr(self, name)))
        several = isinstance(self.ratio, tuple)
        checked: dict[str, Any] = {
            "ratio": tuple(map(_checked_ratio, self.ratio))  # type: ignore[arg-type]
            if several
            else _checked_ratio(self.ratio),  # type: ignore[arg-type]
            "batch_dims": natural_number("batch_dims", self.batch_dims),
        }
        for name, check in filter(None, (kind.own_field for kind in KINDS.values())):
            if getattr(self, name) is not getattr(FilterSpec, name):  # the default is valid
                checked[name] = check(name, getattr(self, name))
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if isinstance(self.order, str):
            _check_order(self.order)
        elif self.order is not None:
            permutation = tuple(int(i) for i in self.order)
            if sorted(permutation) != list(range(len(permutation))):
                raise ValueError("order must hold every index from 0 to its length - 1 once")
            object.__setattr__(self, "order", permutation)
        self._refuse_unused()
        self.kind.check(self)
        object.__setattr__(self, "text", self._text())

    @property
    def kind(self) -> Kind:
        """The filter kind that ``method`` names."""
        return KINDS[self.method]

    def _refuse_unused(self) -> None:
        for name, owners in _OWNERS.items():
            default = getattr(FilterSpec, name)
            if self.method not in owners and getattr(self, name) not in (default, None):
                raise ValueError(
                    f"method {self.method!r} does not use {name}; got {name}="
                    f"{getattr(self, name)!r}, which belongs to {' and '.join(owners)}"
                )

    @staticmethod
    def options_of(method: str) -> tuple[str, ...]:
        """Names of the fields that a method uses.

        >>> FilterSpec.options_of("gaussian")[:4]
        ('method', 'ratio', 'sigma', 'boundary')
        """
        return tuple(name for name in _DEFAULTS if method in _OWNERS.get(name, METHODS))

    def _text(self) -> str:
        given = zip(_DEFAULTS, self.fields, strict=True)
        shown = {
            name: value
            for name, value in given
            if name in ("method", "ratio") or value != _DEFAULTS[name]
        }
        return json.dumps(shown, default=str)

    @property
    def fields(self) -> tuple[Any, ...]:
        """The arguments that make this spec, in their order."""
        return tuple(getattr(self, name) for name in _DEFAULTS)

    @staticmethod
    def from_text(text: str) -> FilterSpec:
        """Return the spec that ``text`` describes.

        >>> FilterSpec.from_text(FilterSpec("lap", window=5).text).window
        5
        """
        try:
            given = {name: as_tuples(value) for name, value in json.loads(text).items()}
        except (ValueError, AttributeError):
            given = {text: None}
        if not given.keys() <= _DEFAULTS.keys():
            raise ValueError(f"spec must be the text of a FilterSpec(...).text; got {text!r}")
        return cached_spec(*(_DEFAULTS | given).values())

    # Specs are looked up on every call, so comparing them must cost next to nothing.
    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, FilterSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

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

    def check_axes(self, dims: int, index: int) -> None:
        """An order of axes must name those of every tensor."""
        axes = "" if self.order is None or is_sample_order(self.order) else str(self.order)
        if axes and dims - self.batch_dims != len(axes):
            raise ValueError(
                f"order {self.order!r} names {len(axes)} axes; grads[{index}] has "
                f"{dims - self.batch_dims}; filter such tensors in a call of their own"
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


def is_sample_order(order: str | Sequence[int] | None) -> bool:
    """Return True if the order moves single samples, so that no view can express it."""
    return order is not None and (not isinstance(order, str) or order.startswith("random"))


@lru_cache(maxsize=8)
def _integers(raw: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(raw, np.int64).tolist())


def as_order(order: Any) -> Any:
    """Return an order that can be a key; of equal tensors and arrays the same object."""
    if order is None or isinstance(order, (str, tuple)):
        return order
    if isinstance(order, (list, range)):
        return tuple(order)
    return _integers(np.asarray(order).astype(np.int64).tobytes())


def as_tuples(value: Any) -> Any:
    """Return lists and arrays, and those in them, as tuples, which can be keys."""
    listed = isinstance(value, (list, tuple, range, np.ndarray))
    return tuple([as_tuples(each) for each in value]) if listed else value


_OWNERS = {
    kind.own_field[0]: (kind.name,) for kind in KINDS.values() if kind.own_field is not None
} | {"boundary": ("lap", "gaussian")}
"""Fields that some methods use, and these methods."""
_DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(FilterSpec)}
_DEFAULTS["ratio"] = _checked_ratio(_DEFAULTS["ratio"])
cached_spec = lru_cache(maxsize=256)(FilterSpec)
"""Specs by their fields: making one takes longer than a call."""


def _check_order(order: str) -> None:
    name, _, seed = order.partition(":")
    if name == "random" and (seed.isdigit() or not seed):
        return
    if not order.isdigit() or sorted(order) != [str(i) for i in range(len(order))]:
        raise ValueError(
            f"order must permute the axes, such as '0231', or be 'random:SEED'; got {order!r}"
        )


def make_spec(spec: FilterSpec | str | None, fields: dict[str, Any]) -> FilterSpec:
    """Return the spec that a method's name or fields by name describe.

    >>> make_spec("lap", {"window": 5}).window
    5
    """
    if isinstance(spec, FilterSpec):
        if fields:
            raise TypeError(
                f"give a FilterSpec or {', '.join(fields)} by name, not both; for instance "
                f"dataclasses.replace(spec, {next(iter(fields))}=...)"
            )
        return spec
    return FilterSpec(spec or "fft", **fields)
