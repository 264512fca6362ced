"""Gradients sharded over processes (``DTensor``, as FSDP2 makes them).

A shard that holds whole signals is filtered where it is: ``centralize`` on weights that are sharded
by rows sends nothing. Of a signal that is divided by rows, filters of few bins add those up over
all processes, and averages exchange the samples that they reach at both ends of each shard. Every
other layer is gathered, one at a time, filtered by each process, and the process keeps its shard.
All processes must call with the same layers in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specgrad_kernels import checks, ops
from specgrad_kernels.kinds import Bins, LocalAverage
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
            checks.check_tensor(grad.to_local(), index)  # type: ignore[union-attr]
            _filter_divided(grad, spec.select([index]), backend)


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


class _Rows(NamedTuple):
    """Samples ``starts[i]`` to ``starts[i + 1]`` of a signal are those of process i of a group."""

    starts: list[int]
    rank: int
    group: Any

    def filled(self) -> list[int]:
        """Processes that have samples."""
        pairs = zip(self.starts, self.starts[1:], strict=False)
        return [rank for rank, (start, end) in enumerate(pairs) if start < end]

    def fewest(self) -> int:
        """Samples of the shortest shard that has any."""
        return min(self.starts[rank + 1] - self.starts[rank] for rank in self.filled())


def _rows(grad: Any, spec: FilterSpec) -> _Rows | None:
    """Return how one signal is divided; None unless it is so by rows, over one group."""
    from torch.distributed.tensor import Shard

    mesh, placements = grad.device_mesh, enumerate(grad.placements)
    shards = [dim for dim, each in placements if not each.is_replicate() and mesh.size(dim) > 1]
    if len(shards) != 1 or type(grad.placements[shards[0]]) is not Shard:
        return None
    if grad.placements[shards[0]].dim != 0 or not grad.numel() or spec.order is not None:
        return None
    if spec.kind.stack_dims(spec, grad.dim()):
        return None
    (dim,) = shards
    rows, samples = grad.shape[0], grad.numel() // grad.shape[0]
    each = -(-rows // mesh.size(dim))  # as torch.chunk divides them
    starts = [min(rank * each, rows) * samples for rank in range(mesh.size(dim) + 1)]
    return _Rows(starts, mesh.get_local_rank(dim), mesh.get_group(dim))


def _filter_divided(grad: Any, spec: FilterSpec, backend: str) -> None:
    """Filter one gradient whose signals are divided, by the way that sends least."""
    rows, d = _rows(grad, spec), grad.numel()
    if rows is None:
        _filter_gathered(grad, spec, backend)
        return
    parameters = spec.kind.parameters(spec, grad.shape, 0)
    if parameters is None:
        return
    numbers = spec.kind.numbers(parameters, d, spec)
    if isinstance(numbers, Bins) and 8 * np.count_nonzero(numbers.removed) <= d:
        _filter_by_bins(grad, rows, numbers)
    elif isinstance(numbers, LocalAverage) and 2 * numbers.radius < rows.fewest():
        name = spec.kind.own_field[0]  # type: ignore[index]
        given: dict[str, Any] = {name: parameters}
        exact = FilterSpec(spec.method, boundary=spec.boundary, **given)
        _filter_with_halos(grad, rows, numbers, exact, backend)
    else:
        _filter_gathered(grad, spec, backend)


def _filter_by_bins(grad: Any, rows: _Rows, bins: Bins) -> None:
    """Add up the removed bins of all shards, and subtract them from this one, in plain PyTorch."""
    shard, d = grad.to_local(), grad.numel()
    kept = slice(rows.starts[rows.rank], rows.starts[rows.rank + 1])
    removed = torch.from_numpy(bins.removed).to(shard.device)
    (changed,) = removed.nonzero(as_tuple=True)
    # twice the digits of the gradient: shards may be much larger than their sum
    finer = torch.float32 if shard.itemsize < 4 else torch.float64
    samples = torch.zeros(d, dtype=finer, device=shard.device)
    samples[kept] = shard.flatten().to(finer)
    spectrum = torch.fft.rfft(samples)
    sent = torch.view_as_real(spectrum[changed] * removed[changed].to(finer)).contiguous()
    torch.distributed.all_reduce(sent, group=rows.group)
    spectrum.zero_()
    spectrum[changed] = torch.view_as_complex(sent)
    shard.sub_(torch.fft.irfft(spectrum, n=d)[kept].view_as(shard))


def _filter_with_halos(
    grad: Any, rows: _Rows, average: LocalAverage, spec: FilterSpec, backend: str
) -> None:
    """Filter this shard between the nearest samples of the shards before and after it."""
    shard, reach = grad.to_local(), average.radius
    own, filled = shard.flatten(), rows.filled()
    ends = own.new_zeros(2, reach)
    if own.numel():
        ends = torch.stack([own[:reach], own[len(own) - reach :]])
    received = [torch.empty_like(ends) for _ in rows.starts[1:]]
    torch.distributed.all_gather(received, ends, group=rows.group)
    if not own.numel():
        return
    place, wraps = filled.index(rows.rank), average.boundary == "circular"
    has_before, has_after = wraps or place > 0, wraps or place + 1 < len(filled)
    before = received[filled[place - 1]][1] if has_before else own[:0]
    after = received[filled[(place + 1) % len(filled)]][0] if has_after else own[:0]
    between = torch.cat([before, own, after])
    ops.apply([between], spec, backend)
    shard.copy_(between[len(before) : len(before) + len(own)].view_as(shard))


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
