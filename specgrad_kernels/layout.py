"""From tensors to signals: flattening orders and stacks of clients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.spec import FilterSpec


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


def is_sample_order(order: str | Sequence[int] | None) -> bool:
    """Return True if the order moves single samples, so that no view can express it."""
    return order is not None and (not isinstance(order, str) or order.startswith("random"))


def permute_axes(grads: Sequence[Tensor], spec: FilterSpec) -> list[Tensor]:
    """Views of the gradients whose logical order is the one asked for, such as ``0231``."""
    assert isinstance(spec.order, str)
    axes = [int(digit) for digit in spec.order]
    views = []
    for index, grad in enumerate(grads):
        if grad.dim() - spec.batch_dims != len(axes):
            raise ValueError(
                f"order {spec.order!r} names {len(axes)} axes; grads[{index}] has "
                f"{grad.dim() - spec.batch_dims}; filter such tensors in a call of their own"
            )
        leading = list(range(spec.batch_dims))
        views.append(grad.permute(leading + [spec.batch_dims + axis for axis in axes]))
    return views


def permuted_shape(shape: Sequence[int], spec: FilterSpec) -> tuple[int, ...]:
    """Return the shape of a tensor whose axes were permuted as the spec asks.

    >>> permuted_shape((64, 3, 5, 7), FilterSpec(order="1023"))
    (3, 64, 5, 7)
    """
    if spec.order is None or is_sample_order(spec.order):
        return tuple(shape)
    (view,) = permute_axes([torch.empty(tuple(shape), device="meta")], spec)
    return tuple(view.shape)


def sample_order(d: int, spec: FilterSpec) -> Tensor:
    """The permutation of ``d`` samples that a ``random:SEED`` or explicit order stands for."""
    if isinstance(spec.order, str):
        seed = int(spec.order.partition(":")[2] or 0)
        return torch.randperm(d, generator=reference.generator_of(seed, d))
    permutation = torch.tensor(spec.order)
    if len(permutation) != d:
        raise ValueError(f"order permutes {len(permutation)} samples; a gradient has {d}")
    return permutation


def flatten(grad: Tensor, spec: FilterSpec) -> Tensor:
    """``[signals, d]`` in logical order; a view where the strides allow it."""
    return grad.reshape(-1, math.prod(signal_shape(grad.shape, spec)))
