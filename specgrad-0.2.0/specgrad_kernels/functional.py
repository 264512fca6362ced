"""``filter_grads``: the filter out of place, with its derivative."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specgrad_kernels import checks, dispatch, layout
from specgrad_kernels.backends import torch_ref
from specgrad_kernels.spec import FilterSpec, is_sample_order, make_spec

Grads = Sequence[Tensor]


def _equation(grads: Grads, spec: FilterSpec) -> list[Tensor]:
    """Return filtered copies by the reference equations, which autograd can follow."""
    if is_sample_order(spec.order):
        return layout.with_permuted_samples(grads, spec, torch_ref.filtered)
    if spec.order is None:
        return torch_ref.filtered(grads, spec)
    filtered = torch_ref.filtered(layout.permute_axes(grads, spec), spec)
    inverse = "".join(str(str(spec.order).index(str(i))) for i in range(len(str(spec.order))))
    return layout.permute_axes(filtered, replace(spec, order=inverse))


def _transposed(grads: Grads, spec: FilterSpec) -> list[Tensor]:
    """Return what the transpose of a linear filter makes of ``grads``."""
    with torch.enable_grad():
        points = [torch.zeros_like(grad, requires_grad=True) for grad in grads]
        return list(torch.autograd.grad(_equation(points, spec), points, list(grads)))


class _Filter(torch.autograd.Function):
    """A linear filter; its derivative is itself, its adjoint the transposed filter."""

    @staticmethod
    def forward(text: str, backend: str, transpose: bool, *grads: Tensor) -> tuple[Tensor, ...]:
        spec = FilterSpec.from_text(text)
        if transpose and not spec.kind.is_symmetric(spec):
            return tuple(_transposed(grads, spec))
        copies = [grad.clone() for grad in grads]
        dispatch.run(copies, spec, backend)
        return tuple(copies)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.how = inputs[:3]

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> Any:
        text, backend, transpose = ctx.how
        return None, None, None, *_Filter.apply(text, backend, not transpose, *tangents)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _Filter.apply(*ctx.how, *tangents[3:])

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, text: str, backend: str, transpose: bool, *grads: Tensor
    ) -> Any:
        spec, dims = FilterSpec.from_text(text), in_dims[3:]
        outputs: dict[int, Tensor] = {}
        for group, views, part in layout.split_mapped(grads, dims, spec):
            filtered = _Filter.apply(part.text, backend, transpose, *views)
            outputs.update(zip(group, filtered, strict=True))
        ordered = tuple(outputs[index] for index in range(len(grads)))
        return ordered, tuple(None if dim is None else 0 for dim in dims)


def filter_grads(
    grads: Iterable[Tensor | None],
    spec: FilterSpec | str | None = None,
    *,
    backend: str = "auto",
    **fields: Any,
) -> list[Tensor | None]:
    """Return filtered copies; autograd, ``torch.func`` and ``vmap`` differentiate through it.

    grads: as for :func:`filter_grads_`; ``None`` entries stay ``None``.
    spec: a :class:`FilterSpec`, or the name of a method; its other arguments by name.

    >>> import torch
    >>> x = torch.arange(100.0, requires_grad=True)
    >>> y, = filter_grads([x], "centralize", group_dims=0)
    >>> y.square().sum().backward()
    >>> bool(x.grad.sum().abs() < 1e-3)                 # the derivative has no mean either
    True
    """
    if isinstance(grads, Tensor):
        raise TypeError("grads must be a list of tensors; got a single tensor, pass [grad]")
    made = make_spec(spec, fields)
    listed = list(grads)
    made.check_count(len(listed))
    indices = [index for index, grad in enumerate(listed) if grad is not None]
    present: list[Tensor] = [grad for grad in listed if grad is not None]
    if not present:
        return listed
    made = made.select(indices)
    for index, grad in zip(indices, present, strict=True):
        checks.check_tensor(grad, index)
    if made.kind.is_linear:
        filtered = _Filter.apply(made.text, backend, False, *present)
    else:
        filtered = _equation(present, made)
    results = dict(zip(indices, filtered, strict=True))
    return [results.get(index) for index in range(len(listed))]
