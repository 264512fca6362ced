"""From tensors to signals: flattening orders and stacks of clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.spec import FilterSpec, is_sample_order


def signal_shape(shape: Sequence[int], spec: FilterSpec) -> tuple[int, ...]:
    """Shape of one signal; the dimensions before it number the signals of the tensor."""
    return tuple(shape[spec.kind.stack_dims(spec, len(shape)) :])


def collapse(shape: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Merge neighbouring dimensions that are one run in memory.

    >>> collapse((16, 3, 3, 3), (27, 9, 3, 1))
    ([432], [1])
    >>> collapse((16, 3, 3, 3), (27, 1, 9, 3))            # channels_last
    ([16, 3, 9], [27, 1, 3])
    """
    sizes: list[int] = []
    steps: list[int] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if sizes and steps[-1] == stride * size:
            sizes[-1] *= size
            steps[-1] = stride
        else:
            sizes.append(size)
            steps.append(stride)
    return sizes or [1], steps or [1]


def permute_axes(grads: Sequence[Tensor], spec: FilterSpec) -> list[Tensor]:
    """Views of the gradients whose logical order is the one asked for, such as ``0231``."""
    assert isinstance(spec.order, str)
    axes = [*range(spec.batch_dims), *(spec.batch_dims + int(digit) for digit in spec.order)]
    for index, grad in enumerate(grads):
        spec.check_axes(grad.dim(), index)
    return [grad.permute(axes) for grad in grads]


def permuted_shape(shape: Sequence[int], spec: FilterSpec) -> tuple[int, ...]:
    """Return the shape of a tensor whose axes were permuted as the spec asks.

    >>> permuted_shape((64, 3, 5, 7), FilterSpec(order="1023"))
    (3, 64, 5, 7)
    """
    if spec.order is None or is_sample_order(spec.order):
        return tuple(shape)
    (view,) = permute_axes([torch.empty(tuple(shape), device="meta")], spec)
    return tuple(view.shape)


@lru_cache(maxsize=4)
def _explicit_order(spec: FilterSpec) -> Tensor:
    return torch.tensor(spec.order)


def sample_order(d: int, spec: FilterSpec) -> Tensor:
    """The permutation of ``d`` samples that a ``random:SEED`` or explicit order stands for."""
    if isinstance(spec.order, str):
        seed = int(spec.order.partition(":")[2] or 0)
        return torch.randperm(d, generator=reference.generator_of(seed, d))
    permutation = _explicit_order(spec)
    if len(permutation) != d:
        raise ValueError(f"order permutes {len(permutation)} samples; a gradient has {d}")
    return permutation


def flatten(grad: Tensor, spec: FilterSpec) -> Tensor:
    """``[signals, d]`` in logical order; a view where the strides allow it."""
    return grad.reshape(-1, math.prod(signal_shape(grad.shape, spec)))


@lru_cache(maxsize=64)
def _without_order(spec: FilterSpec) -> FilterSpec:
    """Spec for stacks of signals whose samples are permuted already."""
    return replace(spec, batch_dims=1, order=None)


def with_permuted_samples(
    grads: Sequence[Tensor],
    spec: FilterSpec,
    filtered: Callable[[list[Tensor], FilterSpec], Sequence[Tensor]],
) -> list[Tensor]:
    """Return what ``filtered`` makes of copies whose samples are permuted, in the own order."""
    results = list(grads)
    filled = [index for index, grad in enumerate(grads) if grad.numel()]
    if not filled:
        return results
    flat = [flatten(grads[index], spec) for index in filled]
    orders = [sample_order(signal.shape[-1], spec).to(signal.device) for signal in flat]
    permuted = [signal.index_select(1, order) for signal, order in zip(flat, orders, strict=True)]
    inner = _without_order(spec if len(filled) == len(grads) else spec.select(filled))
    for index, order, signal in zip(filled, orders, filtered(permuted, inner), strict=True):
        restored = torch.empty_like(signal).index_copy_(1, order, signal)
        results[index] = restored.reshape(grads[index].shape)
    return results


def split_mapped(
    grads: Sequence[Tensor], dims: Sequence[int | None], spec: FilterSpec
) -> Iterator[tuple[list[int], list[Tensor], FilterSpec]]:
    """Indices, views and spec of the tensors that ``vmap`` maps, then of the others.

    The mapped dimension becomes one more dimension of a stack.
    """
    for mapped in (True, False):
        group = [index for index, dim in enumerate(dims) if (dim is not None) == mapped]
        if group:
            views = [
                grads[i] if (dim := dims[i]) is None else grads[i].movedim(dim, 0) for i in group
            ]
            part = spec.select(group)
            yield group, views, replace(part, batch_dims=part.batch_dims + mapped)
