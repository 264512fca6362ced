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


def filter_stacked_(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Filter validated gradients in place. Those with the same equation are stacked."""
    groups: dict[tuple, list[Tensor]] = defaultdict(list)
    for index, grad in enumerate(grads):
        if grad.numel() == 0:
            continue
        shape = signal_shape(grad.shape, spec)
        parameters = spec.kind.parameters(spec, shape, index)
        if parameters is not None:
            groups[(parameters, math.prod(shape), grad.dtype)].append(grad)
    for (parameters, _, dtype), members in groups.items():
        signals = [flatten(grad, spec) for grad in members]
        stacked = torch.cat(signals).to(checks.COMPUTED_IN.get(dtype, dtype))
        filtered = spec.kind.reference(stacked, parameters, spec).to(dtype)
        parts = filtered.split([len(signal) for signal in signals])
        for grad, part in zip(members, parts, strict=True):
            grad.copy_(part.reshape(grad.shape))


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
