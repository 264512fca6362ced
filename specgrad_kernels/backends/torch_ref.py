"""The plain PyTorch backend: the reference equations, one batched call per signal length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specgrad_kernels import checks, reference
from specgrad_kernels.layout import flatten
from specgrad_kernels.spec import FilterSpec

NAME = "torch"

_COMPUTE_DTYPE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _equation(spec: FilterSpec, d: int, index: int, kernel: tuple[int, ...]) -> tuple | None:
    """Name and parameters of the equation for one gradient, ``None`` for the identity.

    Gradients with equal tuples, lengths and dtypes are stacked. ``kernel`` is the size of a
    tensor's last two dimensions.
    """
    if spec.method == "lap":
        window = spec.window_of(d, index)
        return None if window is None else ("lap", _effective_window(window, d, spec.boundary))
    if spec.method == "gaussian":
        sigma = spec.sigma_of(d, index)
        return None if sigma is None else ("gaussian", sigma)
    cutoff = spec.cutoff(d, index)
    if cutoff == 0:
        return None
    if spec.method == "fft2d":
        return ("fft2d", spec.ratio_of(index), kernel)
    return (spec.method, cutoff)


def _effective_window(window: int, d: int, boundary: str) -> int:
    """Wider than the signal on both sides changes nothing when only samples inside count."""
    return min(window, 2 * d - 1) if boundary == "count" else window


def _apply(equation: tuple, signals: Tensor, spec: FilterSpec) -> Tensor:
    name = equation[0]
    if name == "fft2d":
        kernels = signals.reshape(*signals.shape[:-1], -1, *equation[2])
        return reference.suppress_2d(kernels, equation[1]).reshape(signals.shape)
    apply: dict[str, Callable[[], Tensor]] = {
        "fft": lambda: reference.suppress_low(signals, equation[1]),
        "fft_high": lambda: reference.suppress_high(signals, equation[1]),
        "random": lambda: reference.suppress_random(signals, equation[1], spec.seed),
        "l2": lambda: reference.rescale_l2(signals, equation[1]),
        "lap": lambda: reference.lap_detrend(signals, equation[1], spec.boundary),
        "gaussian": lambda: reference.gaussian_detrend(signals, equation[1], spec.boundary),
    }
    return apply[name]()


def filter_stacked_(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Filter validated gradients in place."""
    groups: dict[tuple, list[Tensor]] = defaultdict(list)
    for index, grad in enumerate(grads):
        if grad.numel() == 0:
            continue
        d = flatten(grad, spec.batch_dims).shape[-1]
        equation = _equation(spec, d, index, tuple(grad.shape[-2:]))
        if equation is not None:
            groups[(equation, d, grad.dtype)].append(grad)
    for (equation, _, dtype), members in groups.items():
        signals = [flatten(grad, spec.batch_dims) for grad in members]
        stacked = torch.cat(signals).to(_COMPUTE_DTYPE.get(dtype, dtype))
        filtered = _apply(equation, stacked, spec).to(dtype)
        parts = filtered.split([len(signal) for signal in signals])
        for grad, part in zip(members, parts, strict=True):
            grad.copy_(part.reshape(grad.shape))


def why_not() -> str | None:
    """Always usable."""
    return None


def serves(spec: FilterSpec, device: torch.device) -> str | None:
    """Every method on every device."""
    return None


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Check, then filter in place."""
    checks.check_grads(grads, spec)
    if spec.nonfinite == "raise":
        checks.check_finite(grads)
    filter_stacked_(grads, spec)


def explain(spec: FilterSpec, d: int, index: int, dtype: torch.dtype) -> tuple[str, float, int]:
    """Strategy, error bound and workspace in bytes of one layer."""
    strategy = "identity" if _equation(spec, d, index, ()) is None else f"stacked {spec.method}"
    precision = torch.finfo(_COMPUTE_DTYPE.get(dtype, dtype)).eps
    return strategy, 8 * precision, 3 * d * torch.empty((), dtype=dtype).element_size()
