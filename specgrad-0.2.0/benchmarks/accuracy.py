"""Distance of a result from the float64 reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.workloads import Workload
from specgrad_kernels import FilterSpec, filter_grads_, layout
from specgrad_kernels.kinds import LocalAverage

# of the reference's convolution, which unfolds its input: 61 taps of 16.7 M samples are 8 GB
_PIECE = 1 << 16


def _in_pieces(signal: Tensor, spec: FilterSpec, parameters: Any, radius: int) -> Tensor:
    """The equation of a local average on pieces with enough neighbours to be exact."""
    pieces = []
    for start in range(0, len(signal), _PIECE):
        first = max(start - radius, 0)
        piece = signal[first : start + _PIECE + radius]
        filtered = spec.kind.reference(piece[None], parameters, spec)[0]
        pieces.append(filtered[start - first :][:_PIECE])
    return torch.cat(pieces)


def truth(grad: Tensor, spec: FilterSpec) -> Tensor:
    """The reference's result for one gradient, in float64."""
    exact = grad.to(torch.float64)
    shape = layout.signal_shape(grad.shape, spec)
    parameters = spec.kind.parameters(spec, shape, 0)
    if parameters is None:
        return exact
    numbers = spec.kind.numbers(parameters, math.prod(shape), spec)
    signals = layout.flatten(exact, spec)
    if isinstance(numbers, LocalAverage):
        filtered = torch.stack([_in_pieces(s, spec, parameters, numbers.radius) for s in signals])
    else:
        filtered = spec.kind.reference(signals, parameters, spec)
    return filtered.view(grad.shape)


def relative_error(result: Tensor, expected: Tensor) -> float:
    """l2 distance over the l2 norm of what is expected."""
    distance = torch.linalg.vector_norm(result.to(torch.float64) - expected)
    return float(distance / torch.linalg.vector_norm(expected))


def worst_error(results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest error of any layer."""
    return max(relative_error(r, e) for r, e in zip(results, expected, strict=True))


def errors_of(
    workload: Workload, method: str, ratio: float, dtypes: Sequence[torch.dtype]
) -> list[float]:
    """The op's largest error over a list's layers, for every dtype.

    The error depends on a layer's length, so each length is tried once.
    """
    spec = FilterSpec(method=method, ratio=ratio)
    lengths = {math.prod(shape): shape for shape in workload.shapes}
    layers = Workload(workload.name, workload.title, tuple(lengths.values()))
    grads = layers.gradients(torch.float32)
    expected = [truth(grad, spec) for grad in grads]
    errors = []
    for dtype in dtypes:
        results = [grad.to(dtype, copy=True) for grad in grads]
        filter_grads_(results, method=method, ratio=ratio)
        errors.append(worst_error(results, expected))
    return errors
