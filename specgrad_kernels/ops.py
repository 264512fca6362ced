"""The operators and the way from a public call to a backend.

``specgrad::filter_grads_`` has a plain PyTorch kernel from the start; loading the native
library (``backends/cpp.py``) adds a CPU kernel that then wins. ``filter_grads_as_called_`` is for
compiled graphs that ask for more than that kernel offers: a flattening order, a backend by its
name, the error of ``nonfinite="raise"``. It does at run time what the same call does uncompiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from specgrad_kernels import checks
from specgrad_kernels.backends import choose, torch_ref
from specgrad_kernels.layout import flatten, is_sample_order, permute_axes, sample_order
from specgrad_kernels.spec import FilterSpec, Ratio

_LIBRARY = torch.library.Library("specgrad", "FRAGMENT")
_PLAIN = FilterSpec()


def _filter_grads_torch(grads: Sequence[Tensor], spec: str) -> None:
    torch_ref.run(grads, FilterSpec.parse(spec))


def _filter_grads_cuda(grads: Sequence[Tensor], spec: str) -> None:
    parsed = FilterSpec.parse(spec)
    choose("auto", parsed, grads[0].device).run(grads, parsed)


def as_text(spec: FilterSpec) -> tuple[str, str]:
    """All of a spec as text and order, which compiled graphs compare by value."""
    if spec.order is None or isinstance(spec.order, str):
        return spec.text, spec.order or ""
    return spec.text, "".join(f"{index}," for index in spec.order)


@lru_cache(maxsize=256)
def _parse(spec: str, order: str) -> FilterSpec:
    """Inverse of ``as_text``."""
    samples = tuple(int(index) for index in order.split(",") if index) if "," in order else None
    return replace(FilterSpec.parse(spec), order=samples or order or None)


def _filter_grads_as_called(grads: Sequence[Tensor], spec: str, order: str, backend: str) -> None:
    apply(grads, _parse(spec, order), backend)


def _filter_grads_fake(grads: Sequence[Tensor], spec: str, *_: str) -> None:
    FilterSpec.parse(spec).check_count(len(grads))
    for index, grad in enumerate(grads):
        checks.check_kind(grad, index)


# The first call compiles and later ones depend on where gradients are: nothing for the graphs that
# mode="reduce-overhead" records by itself. torch.cuda.graph() can record a call after the first.
_TAGS = (torch.Tag.cudagraph_unsafe,)
_LIBRARY.define("filter_grads_(Tensor(a!)[] grads, str spec) -> ()", tags=_TAGS)
_LIBRARY.impl("filter_grads_", _filter_grads_torch, "CompositeExplicitAutograd")
_LIBRARY.impl("filter_grads_", _filter_grads_cuda, "CUDA")
_LIBRARY.define(
    "filter_grads_as_called_(Tensor(a!)[] grads, str spec, str order, str backend) -> ()",
    tags=_TAGS,
)
_LIBRARY.impl("filter_grads_as_called_", _filter_grads_as_called, "CompositeExplicitAutograd")
for _name in ("filter_grads_", "filter_grads_as_called_"):
    torch.library.register_fake(f"specgrad::{_name}", _filter_grads_fake, lib=_LIBRARY)


@lru_cache(maxsize=256)
def _make_spec(*fields: object) -> FilterSpec:
    return FilterSpec(*fields)  # type: ignore[arg-type]


def _operator_arguments(
    text: str, order: str, backend: str, device: torch.device, tensors: int, *present: int
) -> tuple[str, ...]:
    """What follows the gradients in a call of ``filter_grads_``, or of the other operator."""
    spec = _parse(text, order)
    spec.check_count(tensors)
    text, order = as_text(spec.select(present))
    chosen = choose(backend, spec, device)
    if not order and spec.nonfinite == "propagate" and chosen is not torch_ref:
        return (text,)
    return text, order, chosen.NAME


def _fields_as_text(*fields: object) -> tuple[str, str]:
    return as_text(_make_spec(*fields))


# What torch.compiler.assume_constant_result does, without importing the whole compiler with
# the package, which would take longer than everything else.
_operator_arguments._dynamo_marked_constant = True  # type: ignore[attr-defined]
_fields_as_text._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _as_constant(value: object) -> object:
    """An argument itself, also where a graph being compiled has made a symbol of a number.

    A symbol has no hash, so as a key of a set it becomes the number it stands for, and another
    number compiles another graph.
    """
    if isinstance(value, tuple):
        return tuple([_as_constant(each) for each in value])
    (constant,) = {value}
    return constant


def trace(grads: Iterable[Tensor | None], text: str, order: str, backend: str) -> None:
    """The whole call as one node of a graph that is being compiled; ``as_text`` of the spec."""
    listed = list(grads)
    indices = [index for index, grad in enumerate(listed) if grad is not None]
    present = [grad for grad in listed if grad is not None]
    if not present:
        return
    if any(grad.requires_grad for grad in present):
        checks.check_grads(present, _PLAIN)
    device = present[0].device
    arguments = _operator_arguments(text, order, backend, device, len(listed), *indices)
    if len(arguments) == 1:
        torch.ops.specgrad.filter_grads_(present, *arguments)
    else:
        torch.ops.specgrad.filter_grads_as_called_(present, *arguments)


def filter_grads_(
    grads: Iterable[Tensor | None],
    *,
    method: str = "fft",
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
) -> None:
    """High-pass filter every gradient in place, all in one call.

    grads: tensors of any shape, float32, float64, bfloat16 or float16, on one device;
        ``None`` entries are skipped. Each is flattened in its logical order.
    backend: ``auto`` takes the fastest that can serve; ``torch``, ``cpp`` or ``triton``, here
        or in ``SPECGRAD_BACKEND`` before the import, must serve or raises.

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
    if isinstance(ratio, list):
        ratio = tuple(ratio)
    if order is not None and not isinstance(order, str):
        order = tuple(int(i) for i in order)
    fields = (method, ratio, window, sigma, boundary, order, batch_dims, nonfinite, strategy, seed)
    if torch.compiler.is_compiling():
        trace(grads, *_fields_as_text(*[_as_constant(field) for field in fields]), backend)
        return
    apply(grads, _make_spec(*fields), backend)


def apply(grads: Iterable[Tensor | None], spec: FilterSpec, backend: str = "auto") -> None:
    """Filter in place by a spec that exists already."""
    listed = list(grads)
    present = [grad for grad in listed if grad is not None]
    if isinstance(spec.ratio, tuple):
        spec.check_count(len(listed))
        spec = spec.select([index for index, grad in enumerate(listed) if grad is not None])
    if not present:
        return
    if spec.order is not None:
        _apply_in_order(present, spec, backend)
        return
    _run(present, spec, backend)


def _run(grads: list[Tensor], spec: FilterSpec, backend: str) -> None:
    if not isinstance(grads[0], Tensor) or grads[0].is_meta:
        checks.check_grads(grads, spec)
    choose(backend, spec, grads[0].device).run(grads, spec)


def _apply_in_order(grads: list[Tensor], spec: FilterSpec, backend: str) -> None:
    if not is_sample_order(spec.order):
        _run(permute_axes(grads, spec), spec, backend)
        return
    checks.check_grads(grads, spec)
    filled = [index for index, grad in enumerate(grads) if grad.numel()]
    if not filled:
        return
    grads, spec = [grads[index] for index in filled], spec.select(filled)
    flat = [flatten(grad, spec.batch_dims) for grad in grads]
    orders = [sample_order(signal.shape[-1], spec).to(signal.device) for signal in flat]
    permuted = [signal[:, order] for signal, order in zip(flat, orders, strict=True)]
    _run(permuted, replace(spec, batch_dims=1, order=None), backend)
    for grad, order, signal in zip(grads, orders, permuted, strict=True):
        restored = torch.empty_like(signal)
        restored[:, order] = signal
        grad.copy_(restored.reshape(grad.shape))
