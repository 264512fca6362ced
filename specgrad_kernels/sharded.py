"""Gradients sharded over processes (``DTensor``, as FSDP2 makes them).

A shard that holds whole signals is filtered where it is: ``centralize`` on weights that are sharded
by rows sends nothing. Every other layer is gathered, one at a time, filtered by each process, and
the process keeps its shard. All processes must call with the same layers in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specgrad_kernels import ops
from specgrad_kernels.spec import FilterSpec


def is_sharded(tensor: object) -> bool:
    """Return True for a ``DTensor``, without importing torch's distributed package."""
    return hasattr(tensor, "full_tensor")


def filter_sharded_(grads: Sequence[Tensor | None], spec: FilterSpec, backend: str) -> None:
    """Filter in place gradients of which some are sharded."""
    spec.check_count(len(grads))
    for index, grad in enumerate(grads):
        if is_sharded(grad) and any(each.is_partial() for each in grad.placements):  # type: ignore
            raise TypeError(
                f"grads[{index}] is a DTensor whose sum over processes is pending; reduce it with "
                "grad.redistribute() first"
            )
    if spec.nonfinite == "raise":
        _check_finite(grads)
        spec = replace(spec, nonfinite="propagate")
    here: list[Tensor | None] = [
        _local(grad) if is_sharded(grad) and _holds_whole_signals(grad, spec) else grad
        for grad in grads
    ]
    ops.apply([None if is_sharded(grad) else grad for grad in here], spec, backend)
    for index, grad in enumerate(here):
        if is_sharded(grad):
            _filter_gathered(grad, spec.select([index]), backend)


def _local(grad: Any) -> Tensor | None:
    """The shard of this process, None where it is empty."""
    shard: Tensor = grad.to_local()
    return shard if shard.numel() else None


def _holds_whole_signals(grad: Any, spec: FilterSpec) -> bool:
    """Return True if no signal is divided: only dimensions that number signals are sharded."""
    stack = spec.kind.stack_dims(spec, grad.dim()) if spec.order is None else 0
    return all(
        placement.is_replicate() or size == 1 or placement.dim < stack
        for placement, size in zip(grad.placements, grad.device_mesh.shape, strict=True)
    )


def _filter_gathered(grad: Any, spec: FilterSpec, backend: str) -> None:
    """Gather one gradient, filter it, and keep this process's part."""
    from torch.distributed.tensor import distribute_tensor

    whole = grad.full_tensor()
    ops.apply([whole], spec, backend)
    own = distribute_tensor(whole, grad.device_mesh, grad.placements, src_data_rank=None)
    grad.to_local().copy_(own.to_local())


def _check_finite(grads: Sequence[Tensor | None]) -> None:
    """Raise in every process for the first gradient that holds NaN or Inf in any of them."""
    for index, grad in enumerate(grads):
        if grad is None:
            continue
        shard = grad.to_local() if is_sharded(grad) else grad  # type: ignore[attr-defined]
        finite = torch.isfinite(shard).all().to(torch.int32)
        if is_sharded(grad):
            for group in grad.device_mesh.get_all_groups():  # type: ignore[attr-defined]
                torch.distributed.all_reduce(finite, torch.distributed.ReduceOp.MIN, group)
        if not finite:
            raise FloatingPointError(
                f"grads[{index}] of shape {tuple(grad.shape)} holds NaN or Inf and "
                "nonfinite='raise' was asked for; no gradient was changed"
            )
