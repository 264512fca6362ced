"""How far a result is from the float64 reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.workloads import Workload
from specgrad_kernels import FilterSpec, filter_grads_, reference

# of the reference's convolution, which unfolds its input: 61 taps of 16.7 M samples are 8 GB
_PIECE = 1 << 16


def _detrended_in_pieces(signal: Tensor, spec: FilterSpec) -> Tensor:
    """The reference of ``lap`` or ``gaussian`` on pieces with enough neighbours to be exact."""
    d = signal.numel()
    if spec.method == "lap":
        window = spec.window_of(d)
        radius = window // 2 if window else 0
    else:
        window, sigma = None, spec.sigma_of(d)
        radius = math.ceil(4 * sigma) if sigma else 0
    if not radius:
        return signal.clone()
    pieces = []
    for start in range(0, d, _PIECE):
        first, last = max(start - radius, 0), min(start + _PIECE + radius, d)
        piece = signal[first:last]
        if window:
            filtered = reference.lap_detrend(piece, window)
        else:
            filtered = reference.gaussian_detrend(piece, spec.sigma_of(d) or 0)
        pieces.append(filtered[start - first :][:_PIECE])
    return torch.cat(pieces)


def truth(grad: Tensor, spec: FilterSpec) -> Tensor:
    """The reference's result for one gradient, in float64."""
    signal = grad.to(torch.float64).flatten()
    if spec.method == "fft":
        filtered = reference.suppress_low(signal, spec.cutoff(signal.numel()))
    else:
        filtered = _detrended_in_pieces(signal, spec)
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
