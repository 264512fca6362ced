"""How a tensor becomes the signal that is filtered: flattening orders and stacks of clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.spec import FilterSpec


def signal_length(shape: Sequence[int], batch_dims: int) -> int:
    """Samples of one signal in a tensor of this shape."""
    length = 1
    for size in shape[batch_dims:]:
        length *= size
    return length


def is_sample_order(order: str | Sequence[int] | None) -> bool:
    """Whether the order moves single samples, so that no view can express it."""
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


def sample_order(d: int, spec: FilterSpec) -> Tensor:
    """The permutation of ``d`` samples that a ``random:SEED`` or explicit order stands for."""
    if isinstance(spec.order, str):
        seed = int(spec.order.partition(":")[2] or 0)
        return torch.randperm(d, generator=reference.generator_of(seed, d))
    permutation = torch.tensor(spec.order)
    if len(permutation) != d:
        raise ValueError(f"order permutes {len(permutation)} samples; a gradient has {d}")
    return permutation


def flatten(grad: Tensor, batch_dims: int) -> Tensor:
    """``[stack, d]`` in logical order; a view where the strides allow it."""
    return grad.reshape(-1, signal_length(grad.shape, batch_dims))
