"""The operators and the way from a public call to a backend.

``specgrad::filter_grads_`` has a plain PyTorch kernel from the start; loading the native
library (``backends/cpp.py``) adds a CPU kernel that then wins. ``filter_grads_torch_`` is the
same schema without other kernels, for compiled graphs that ask for plain PyTorch.
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


def _filter_grads_torch(grads: Sequence[Tensor], spec: str) -> None:
    torch_ref.run(grads, FilterSpec.parse(spec))


def _filter_grads_fake(grads: Sequence[Tensor], spec: str) -> None:
    FilterSpec.parse(spec).check_count(len(grads))
    for index, grad in enumerate(grads):
        checks.check_kind(grad, index)


def _filter_grads_cuda(grads: Sequence[Tensor], spec: str) -> None:
    parsed = FilterSpec.parse(spec)
    choose("auto", parsed, "cuda").run(grads, parsed)


for _name in ("filter_grads_", "filter_grads_torch_"):
    _LIBRARY.define(f"{_name}(Tensor(a!)[] grads, str spec) -> ()")
    _LIBRARY.impl(_name, _filter_grads_torch, "CompositeExplicitAutograd")
    torch.library.register_fake(f"specgrad::{_name}", _filter_grads_fake, lib=_LIBRARY)
_LIBRARY.impl("filter_grads_", _filter_grads_cuda, "CUDA")


@lru_cache(maxsize=256)
def _make_spec(*fields: object) -> FilterSpec:
    return FilterSpec(*fields)  # type: ignore[arg-type]


def operator_of(spec: FilterSpec, device_type: str, backend: str) -> str:
    """Name of the operator that runs the chosen backend inside a compiled graph."""
    chosen = choose(backend, spec, device_type)
    return "filter_grads_torch_" if chosen is torch_ref else "filter_grads_"


def call_operator(grads: list[Tensor], operator: str, text: str) -> None:
    """The whole call as one node of a graph that is being compiled."""
    getattr(torch.ops.specgrad, operator)(grads, text)


def _operator_and_text(backend: str, device_type: str, *fields: object) -> tuple[str, str]:
    spec = _make_spec(*fields)
    return operator_of(spec, device_type, backend), spec.text


# What torch.compiler.assume_constant_result does, without importing the whole compiler with
# the package, which would take longer than everything else.
_operator_and_text._dynamo_marked_constant = True  # type: ignore[attr-defined]


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
    if isinstance(ratio, list):
        ratio = tuple(ratio)
    if order is not None and not isinstance(order, str):
        order = tuple(int(i) for i in order)
    fields = (method, ratio, window, sigma, boundary, order, batch_dims, nonfinite, strategy, seed)
    if torch.compiler.is_compiling() and order is None:
        present = [grad for grad in grads if grad is not None]
        if present:
            call_operator(present, *_operator_and_text(backend, present[0].device.type, *fields))
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
    choose(backend, spec, grads[0].device.type).run(grads, spec)


def _apply_in_order(grads: list[Tensor], spec: FilterSpec, backend: str) -> None:
    if not is_sample_order(spec.order):
        _run(permute_axes(grads, spec), spec, backend)
        return
    checks.check_grads(grads, spec)
    flat = [flatten(grad, spec.batch_dims) for grad in grads]
    orders = [sample_order(signal.shape[-1], spec).to(signal.device) for signal in flat]
    permuted = [signal[:, order] for signal, order in zip(flat, orders, strict=True)]
    _run(permuted, replace(spec, batch_dims=1, order=None), backend)
    for grad, order, signal in zip(grads, orders, permuted, strict=True):
        restored = torch.empty_like(signal)
        restored[:, order] = signal
        grad.copy_(restored.reshape(grad.shape))
