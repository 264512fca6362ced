"""The plain PyTorch backend: the reference equations, one batched call per signal length."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from specgrad_kernels import checks, design
from specgrad_kernels.kinds import LocalAverage
from specgrad_kernels.layout import flatten, signal_shape
from specgrad_kernels.spec import FilterSpec

NAME = "torch"


def filtered(grads: Sequence[Tensor], spec: FilterSpec) -> list[Tensor]:
    """Return filtered gradients, those left alone as they are. Equal equations are stacked."""
    groups: dict[tuple, list[int]] = defaultdict(list)
    for index, grad in enumerate(grads):
        if grad.numel() == 0:
            continue
        shape = signal_shape(grad.shape, spec)
        parameters = spec.kind.parameters(spec, shape, index)
        if parameters is not None:
            groups[(parameters, math.prod(shape), grad.dtype)].append(index)
    results = list(grads)
    for (parameters, _, dtype), members in groups.items():
        signals = [flatten(grads[index], spec) for index in members]
        stacked = torch.cat(signals).to(checks.COMPUTED_IN.get(dtype, dtype))
        parts = spec.kind.reference(stacked, parameters, spec).to(dtype)
        for index, part in zip(members, parts.split(list(map(len, signals))), strict=True):
            results[index] = part.reshape(grads[index].shape)
    return results


def filter_stacked_(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Filter validated gradients in place."""
    for grad, result in zip(grads, filtered(grads, spec), strict=True):
        if result is not grad:
            grad.copy_(result)


def why_not() -> str | None:
    """Return ``None``: it can always run."""
    return None


def unsupported_reason(spec: FilterSpec, device: torch.device) -> str | None:
    """Return ``None``: every method on every device is supported."""
    return None


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Check, then filter in place."""
    checks.check_grads(grads, spec)
    if spec.nonfinite == "raise":
        checks.check_finite(grads)
    filter_stacked_(grads, spec)


def explain(spec: FilterSpec, d: int, index: int, dtype: torch.dtype) -> tuple[str, float, int]:
    """Strategy, error bound and workspace in bytes of one layer."""
    parameters = spec.kind.parameters(spec, (d,), index)
    if parameters is None:
        return "identity", 0.0, 0
    numbers = spec.kind.numbers(parameters, d, spec)
    norm = 1.0 if numbers is None else numbers.norm
    terms = 2 * numbers.radius + 1 if isinstance(numbers, LocalAverage) else 0
    bound = norm * design.equation_rounding(dtype == torch.float64, d, terms)
    bound += design.stored_rounding(dtype, norm)
    return f"stacked {spec.method}", bound, 3 * d * dtype.itemsize
