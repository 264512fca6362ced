"""Whether strided tensors share memory, decided from sizes and strides alone.

Two tensors share a byte when some element of one and some element of the other do: an equation
between two sums of steps. Counting the second tensor's steps backwards from its last element
turns it into one question, whether a distance is a sum of so many steps of each size, which a
search answers after a few tries whatever the number of elements.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from torch import Tensor


def is_sum_of_steps(steps: Mapping[int, int], distance: int) -> bool:
    """Whether ``distance`` is a sum of steps of positive sizes, each taken up to so many times.

    >>> is_sum_of_steps({10: 3, 4: 2}, 28), is_sum_of_steps({10: 3, 4: 2}, 12)
    (True, False)
    """
    sizes = sorted((size for size, most in steps.items() if most), reverse=True)
    reach, divisor = [0], [0]  # of the sums of all steps from a level on
    for size in reversed(sizes):
        reach.insert(0, reach[0] + size * steps[size])
        divisor.insert(0, math.gcd(divisor[0], size))
    hopeless: set[tuple[int, int]] = set()

    def search(level: int, rest: int) -> bool:
        if rest == 0:
            return True
        if not 0 < rest <= reach[level] or rest % divisor[level] or (level, rest) in hopeless:
            return False
        if level == len(sizes) - 1:
            return True
        size = sizes[level]
        fewest = max(0, -((reach[level + 1] - rest) // size))
        most = min(steps[size], rest // size)
        # smaller steps can only make up what their divisor divides
        period = divisor[level + 1] // divisor[level]
        wanted = rest // divisor[level] * pow(size // divisor[level], -1, period)
        for count in range(fewest + (wanted - fewest) % period, most + 1, period):
            if search(level + 1, rest - count * size):
                return True
        hopeless.add((level, rest))
        return False

    return search(0, distance)


def extent(grad: Tensor) -> tuple[int, int]:
    """First and one-past-last byte that the tensor can touch."""
    start = grad.data_ptr()
    span = sum((size - 1) * stride for size, stride in zip(grad.shape, grad.stride(), strict=True))
    return start, start + (span + 1) * grad.element_size()


def shares_memory_with_itself(grad: Tensor) -> bool:
    """Whether two elements are one place in memory.

    >>> import torch
    >>> shares_memory_with_itself(torch.zeros(1, 3).expand(2, 3))
    True
    """
    if grad.numel() == 0:
        return False
    dims = zip(grad.stride(), grad.shape, strict=True)
    rest = sorted(((stride, size - 1) for stride, size in dims if size > 1), reverse=True)
    if rest and rest[-1][0] == 0:
        return True
    while rest:
        # two places that differ first in this dimension, by one step or more
        (stride, most), *rest = rest
        steps = Counter({stride: most - 1})
        distance = -stride
        for smaller, count in rest:
            steps[smaller] += 2 * count
            distance += smaller * count
        if is_sum_of_steps(steps, distance):
            return True
    return False


def share_memory(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors, neither of them empty, have a byte in common.

    >>> import torch
    >>> matrix = torch.zeros(5, 4)
    >>> share_memory(matrix[:, 0], matrix[:, 1]), share_memory(matrix[:, 0], matrix[2])
    (False, True)
    """
    width = first.element_size()
    start, (other, end) = first.data_ptr(), extent(second)
    steps: Counter[int] = Counter()
    if second.element_size() == width and (other - start) % width == 0:
        unit, distance = width, end - width - start
    else:
        unit, distance = 1, end - 1 - start
        steps[1] = width + second.element_size() - 2
    for grad in (first, second):
        for size, stride in zip(grad.shape, grad.stride(), strict=True):
            steps[stride * grad.element_size() // unit] += size - 1
    del steps[0]  # a stride of 0 leads nowhere new
    return is_sum_of_steps(steps, distance // unit)
