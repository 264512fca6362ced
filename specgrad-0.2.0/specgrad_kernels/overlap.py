"""Memory shared by strided tensors, decided from sizes and strides alone.

NumPy solves the equation between two sums of steps exactly, whatever the number of elements. It is
given addresses and reads none of them, so they may be a GPU's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor


class _Places:
    """The addresses of a tensor's elements plus one, as NumPy asks for them."""

    def __init__(self, grad: Tensor) -> None:
        width = grad.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (grad.data_ptr() + 1, True),  # 0, where there is no memory, is refused
            "shape": tuple(grad.shape),
            "strides": tuple(stride * width for stride in grad.stride()),
            "typestr": f"|V{width}",
        }


def _places(grad: Tensor) -> np.ndarray[Any, Any]:
    return np.asarray(_Places(grad))


def extent(grad: Tensor) -> tuple[int, int]:
    """First and one-past-last byte that the tensor can touch."""
    start = grad.data_ptr()
    span = sum((size - 1) * stride for size, stride in zip(grad.shape, grad.stride(), strict=True))
    return start, start + (span + 1) * grad.element_size()


def shares_memory_with_itself(grad: Tensor) -> bool:
    """Return True if two elements of a tensor that is not empty are one place in memory.

    >>> import torch
    >>> shares_memory_with_itself(torch.zeros(1, 3).expand(2, 3))
    True
    """
    if grad.is_contiguous():
        return False
    if any(size > 1 and not stride for size, stride in zip(grad.shape, grad.stride(), strict=True)):
        return True
    rest = _places(grad)
    while rest.ndim:
        # two places that differ first in this dimension, by one step or more
        if np.shares_memory(rest[:1], rest[1:]):
            return True
        rest = rest[0, ...]
    return False


def steps_of(grad: Tensor) -> tuple[int, int, int]:
    """Return the first byte, the element's bytes, and a step that all its strides are whole."""
    width = grad.element_size()
    strides = [
        stride * width for size, stride in zip(grad.shape, grad.stride(), strict=True) if size > 1
    ]
    return grad.data_ptr(), width, math.gcd(*strides)


def may_share_memory(first: tuple[int, int, int], second: tuple[int, int, int]) -> bool:
    """False where the steps of two tensors keep their elements apart, as those of two columns.

    >>> import torch
    >>> matrix = torch.zeros(5, 4)
    >>> may_share_memory(steps_of(matrix[:, 0]), steps_of(matrix[:, 1]))
    False
    """
    step = math.gcd(first[2], second[2])
    distance = (second[0] - first[0]) % step if step else 0
    return not (step and distance >= first[1] and step - distance >= second[1])


def share_memory(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors, neither of them empty, have a byte in common.

    >>> import torch
    >>> matrix = torch.zeros(5, 4)
    >>> share_memory(matrix[:, 0], matrix[:, 1]), share_memory(matrix[:, 0], matrix[2])
    (False, True)
    """
    return np.shares_memory(_places(first), _places(second))
