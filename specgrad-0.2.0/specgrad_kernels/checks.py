"""Refusals: everything that could leave a gradient half filtered or wrongly flattened.

All checks run before any gradient is written.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._C._functorch import is_gradtrackingtensor
from torch.autograd import forward_ad

from specgrad_kernels import overlap
from specgrad_kernels.spec import FilterSpec

FLOAT_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)  # as in csrc/signal.h
COMPUTED_IN = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def check_tensor(grad: Tensor, index: int) -> None:
    """Refuse what is not a dense, real, materialised tensor of this process."""
    if not isinstance(grad, Tensor):
        raise TypeError(f"grads[{index}] must be a tensor or None; got {type(grad).__name__}")
    if type(grad).__module__.startswith("torch.distributed") and hasattr(grad, "to_local"):
        raise TypeError(
            f"grads[{index}] is a {type(grad).__name__}: the flattening of a shard is not that "
            "of its layer; filter it by FilterPlan.attach, or pass grad.full_tensor()"
        )
    if grad.is_nested:
        raise TypeError(
            f"grads[{index}] is a nested tensor; only dense gradients can be filtered, pass "
            "grad.unbind() or leave the layer out"
        )
    if grad.layout is not torch.strided:
        raise TypeError(
            f"grads[{index}] has layout {grad.layout}; only dense gradients can be filtered, "
            "call .to_dense() or leave the layer out"
        )
    if grad.dtype not in FLOAT_DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOAT_DTYPES)
        raise TypeError(f"grads[{index}] has dtype {grad.dtype}; expected one of {allowed}")


def check_all(grads: Sequence[Tensor | None], spec: FilterSpec) -> None:
    """Raise for the first gradient that cannot be filtered, by its index in the whole list."""
    check_derivatives(grads)
    check_grads(grads, spec)
    for index, grad in _present(grads):
        spec.check_axes(grad.dim(), index)
    if spec.nonfinite == "raise":
        check_finite(grads)


def _present(grads: Sequence[Tensor | None]) -> list[tuple[int, Tensor]]:
    """Gradients that are there, with their indices."""
    return [(index, grad) for index, grad in enumerate(grads) if grad is not None]


def check_grads(grads: Sequence[Tensor | None], spec: FilterSpec) -> None:
    """Raise for the first gradient that cannot be filtered in place."""
    spec.check_count(len(grads))
    present = _present(grads)
    for index, grad in present:
        check_tensor(grad, index)
        if grad.device.type == "meta":
            raise TypeError(f"grads[{index}] is a meta tensor and holds no values to filter")
        if grad.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"grads[{index}] requires grad, and the filter is not differentiable in place; use "
                "filter_grads, which returns new tensors, or torch.no_grad()"
            )
        first, device = present[0][0], present[0][1].device
        if grad.device != device:
            raise ValueError(
                f"grads[{index}] is on {grad.device} and grads[{first}] on {device}; "
                "filter each device's gradients in a call of its own"
            )
        if grad.dim() < spec.batch_dims:
            raise ValueError(
                f"grads[{index}] has {grad.dim()} dimensions, fewer than batch_dims="
                f"{spec.batch_dims}"
            )
        complaint = spec.kind.check_shape(spec, grad.shape)
        if complaint:
            raise ValueError(f"grads[{index}] has shape {tuple(grad.shape)}; {complaint}")
    check_overlap(grads)


def check_derivatives(grads: Sequence[Tensor | None]) -> None:
    """Refuse gradients that a transformation of ``torch.func`` or a forward mode differentiates."""
    for index, grad in _present(grads):
        dual = forward_ad._current_level >= 0 and forward_ad.unpack_dual(grad).tangent is not None
        if dual or is_gradtrackingtensor(grad):
            raise ValueError(
                f"grads[{index}] is being differentiated, and the filter has no derivative in "
                "place; use filter_grads, which returns new tensors"
            )


def check_overlap(grads: Sequence[Tensor | None]) -> None:
    """Refuse gradients that share memory with themselves or with each other."""
    extents = []
    steps = {}
    present = dict(_present(grads))
    for index, grad in present.items():
        if grad.numel() == 0:
            continue
        if overlap.shares_memory_with_itself(grad):
            raise ValueError(
                f"grads[{index}] shares memory with itself (shape {tuple(grad.shape)}, strides "
                f"{grad.stride()}); pass a clone and copy it back"
            )
        extents.append((*overlap.extent(grad), index))
        steps[index] = overlap.steps_of(grad)
    active: list[tuple[int, int]] = []  # those that reach beyond the start at hand
    for start, end, index in sorted(extents):
        active = [(other_end, other) for other_end, other in active if other_end > start]
        for _, other in active:
            if overlap.may_share_memory(steps[other], steps[index]) and overlap.share_memory(
                present[other], present[index]
            ):
                first, second = sorted((other, index))
                raise ValueError(
                    f"grads[{first}] and grads[{second}] share memory, so their filtered values "
                    "would depend on the order; pass each tensor once"
                )
        active.append((end, index))


def check_finite(grads: Sequence[Tensor | None]) -> None:
    """Raise for the first gradient with a NaN or an infinity."""
    present = _present(grads)
    # all answers together: each one that is asked for alone waits for a GPU
    finite = torch.stack([torch.isfinite(grad).all() for _, grad in present]).tolist()
    for (index, grad), is_finite in zip(present, finite, strict=True):
        if not is_finite:
            raise FloatingPointError(
                f"grads[{index}] of shape {tuple(grad.shape)} holds NaN or Inf and "
                "nonfinite='raise' was asked for; no gradient was changed"
            )
