"""Filters by the kernels and by the float64 reference, and tells how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specgrad_kernels.backends import torch_ref
from specgrad_kernels.backends.triton import failures, launch
from specgrad_kernels.spec import FilterSpec

TOLERANCE = {
    torch.float32: 5e-7,
    torch.float64: 1e-14,
    # the interpreter truncates where a GPU rounds
    torch.bfloat16: 2 * torch.finfo(torch.bfloat16).eps,
    torch.float16: 2 * torch.finfo(torch.float16).eps,
}


def forget_programs() -> None:
    """Drop everything that is kept from call to call."""
    launch.calls.clear()
    failures.forget()


def random_grads(
    shapes: Sequence[int | tuple[int, ...]], dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[Tensor]:
    """Normal samples around a mean, which is the first thing a filter takes away."""
    generator = torch.Generator().manual_seed(seed)
    grads = []
    for shape in shapes:
        sizes = (shape,) if isinstance(shape, int) else shape
        grad = torch.randn(sizes, generator=generator, dtype=torch.float64)
        grads.append((grad + 0.25).to(dtype))
    return grads


def reference(grads: Sequence[Tensor], spec: FilterSpec) -> list[Tensor]:
    """The filtered gradients in float64."""
    exact = [grad.double().clone(memory_format=torch.contiguous_format) for grad in grads]
    torch_ref.run(exact, spec)
    return exact


def worst_error(grads: Sequence[Tensor], spec: FilterSpec) -> float:
    """Filter in place; the largest l2 distance to the reference, relative to the gradient.

    Relative to what came in, not to what is left: a constant leaves nothing.
    """
    before = [grad.double().norm() for grad in grads]
    exact = reference(grads, spec)
    launch.run(grads, spec)
    return max(
        float((grad.double() - truth).norm() / max(float(norm), 1e-30))
        for grad, truth, norm in zip(grads, exact, before, strict=True)
    )


def relative_errors(grads: Sequence[Tensor], spec: FilterSpec) -> list[float]:
    """Filter in place; l2 distances to the reference, relative to the reference."""
    exact = reference(grads, spec)
    launch.run(grads, spec)
    return [
        float((grad.double() - truth).norm() / truth.norm())
        for grad, truth in zip(grads, exact, strict=True)
    ]
