"""``filter_grads_``: the filter as a function of a list of gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specgrad_kernels import checks, dispatch
from specgrad_kernels.spec import FilterSpec, Ratio, as_order, as_tuples, cached_spec

_PLAIN = FilterSpec()


def _text_for_graph(spec_or_fields: str | tuple, tensors: int, *present: int) -> str:
    """Return the text of a spec for those of the tensors that are there."""
    if isinstance(spec_or_fields, str):
        spec = FilterSpec.from_text(spec_or_fields)
    else:
        spec = cached_spec(*spec_or_fields)
    spec.check_count(tensors)
    return spec.select(present).text


# What torch.compiler.assume_constant_result does, without importing the whole compiler with
# the package, which would take longer than everything else.
_text_for_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _as_constant(value: object) -> object:
    """Return an argument itself, also where a graph being compiled has made a symbol of a number.

    A symbol has no hash, so as a key of a set it becomes the number it stands for, and another
    number compiles another graph.
    """
    if isinstance(value, tuple):
        return tuple([_as_constant(each) for each in value])
    (constant,) = {value}
    return constant


def trace(grads: Iterable[Tensor | None], spec_or_fields: str | tuple, backend: str) -> None:
    """Add the whole call as one node to a graph that is being compiled.

    The compiler compares texts and tuples of numbers by value, and no other object.
    """
    listed = list(grads)
    indices = [index for index, grad in enumerate(listed) if grad is not None]
    present = [grad for grad in listed if grad is not None]
    if not present:
        return
    if any(grad.requires_grad for grad in present):
        checks.check_grads(present, _PLAIN)
    text = _text_for_graph(spec_or_fields, len(listed), *indices)
    torch.ops.specgrad.filter_grads_(present, text, backend)


def filter_grads_(
    grads: Iterable[Tensor | None],
    method: str = "fft",
    *,
    ratio: Ratio | Sequence[Ratio] = 0.05,
    window: int | None = None,
    sigma: float | None = None,
    boundary: str = "count",
    order: str | Sequence[int] | None = None,
    batch_dims: int = 0,
    backend: str = "auto",
    nonfinite: str = "propagate",
    strategy: str = "auto",
    seed: int = 0,
    group_dims: int = 1,
    gains: Sequence[tuple[float, float]] | None = None,
) -> None:
    """High-pass filter every gradient in place, all in one call.

    grads: tensors of any shape, float32, float64, bfloat16 or float16, on one device;
        ``None`` entries are skipped. Each is flattened in its logical order.
    backend: ``auto`` takes the fastest available; ``torch``, ``cpp`` or ``triton``, here or in
        ``SPECGRAD_BACKEND`` before the import, raises if unavailable.

    The other arguments are those of :class:`FilterSpec`.

    >>> import torch
    >>> layer = torch.nn.Conv2d(8, 8, 3)
    >>> layer(torch.randn(1, 8, 16, 16)).square().mean().backward()
    >>> filter_grads_([layer.weight.grad], ratio=0.05)
    >>> bool(layer.weight.grad.mean().abs() < 1e-7)     # bin 0, the mean, is gone
    True
    """
    if isinstance(grads, Tensor):
        raise TypeError("grads must be a list of tensors; got a single tensor, pass [grad]")
    if isinstance(method, FilterSpec):
        raise TypeError(
            "filter_grads_ takes a method and its arguments by name; write filter_grads_(grads, "
            f"{method.method!r}, ...), or filter_grads(grads, spec) for filtered copies"
        )
    ratio, gains = as_tuples(ratio), as_tuples(gains)
    order = as_order(order)
    fields: tuple = (method, ratio, window, sigma, boundary, order, batch_dims, nonfinite)
    fields += (strategy, seed, group_dims, gains)
    if torch.compiler.is_compiling():
        trace(grads, tuple([_as_constant(field) for field in fields]), backend)
        return
    apply(grads, cached_spec(*fields), backend)


def apply(grads: Iterable[Tensor | None], spec: FilterSpec, backend: str = "auto") -> None:
    """Filter in place by an existing spec."""
    listed = list(grads)
    present = [grad for grad in listed if grad is not None]
    selected = spec
    if isinstance(spec.ratio, tuple):
        spec.check_count(len(listed))
        selected = spec.select([index for index, grad in enumerate(listed) if grad is not None])
    if not present:
        return
    if not isinstance(present[0], Tensor) or present[0].is_meta:
        checks.check_grads(listed, spec)
    try:
        dispatch.run(present, selected, backend)
    except (TypeError, ValueError, FloatingPointError):
        if len(present) < len(listed):
            checks.check_all(listed, spec)  # by its index among those that are missing
        raise
