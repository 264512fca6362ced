"""The paper's filters as plain PyTorch equations: the truth everything else is tested against.

What kinds of filter hand to backends as numbers has two equations, one for gains of bins and one
for a local average. Every function filters along the last dimension of a floating tensor, returns
a new tensor of the same shape and dtype, and computes in that dtype.

>>> import torch
>>> g = torch.arange(6.0)
>>> suppress_low(g, cutoff=1)                      # bin 0 is the mean
tensor([-2.5000, -1.5000, -0.5000,  0.5000,  1.5000,  2.5000])
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from numbers import Real

import torch
import torch.nn.functional as F
from torch import Tensor

Ratio = float | str | Fraction | Decimal


def exact_ratio(ratio: Ratio) -> Fraction:
    """The ratio as a person wrote it: 0.29 is 29/100, not the binary float below it.

    Numbers of numpy are numbers like others; ``str``, unlike ``repr``, gives their digits alone.

    >>> exact_ratio(0.29), exact_ratio("1/3")
    (Fraction(29, 100), Fraction(1, 3))
    """
    if isinstance(ratio, (Fraction, str)):
        return Fraction(ratio)
    if isinstance(ratio, (Real, Decimal)):
        return Fraction(str(ratio))
    raise TypeError(f"a ratio is a number or its text; got {type(ratio).__name__}")


def num_bins(d: int) -> int:
    """Length of the one-sided spectrum of ``d`` real samples."""
    return d // 2 + 1


def cutoff(ratio: Ratio, d: int) -> int:
    """Number of the ``d // 2 + 1`` rFFT bins that a ratio suppresses.

    >>> cutoff(0.05, 36864), cutoff(0.29, 199)
    (921, 29)
    """
    return math.floor(exact_ratio(ratio) * num_bins(d))


def default_window(ratio: Ratio) -> int:
    """LAP-D width whose half-amplitude frequency is the FFT cutoff, as the nearest odd number."""
    return 2 * math.floor(Fraction(12067, 20000) / exact_ratio(ratio)) + 1


def default_sigma(ratio: Ratio) -> float:
    """Gaussian width whose half-amplitude frequency is the FFT cutoff."""
    return 0.37478 / float(exact_ratio(ratio))


def suppress_low(g: Tensor, cutoff: int) -> Tensor:
    """Zero the first ``cutoff`` rFFT bins: the paper's filter."""
    spectrum = torch.fft.rfft(g)
    spectrum[..., :cutoff] = 0
    return torch.fft.irfft(spectrum, n=g.shape[-1])


def scale_bins(g: Tensor, gains: Tensor) -> Tensor:
    """Multiply the first rFFT bins by ``gains``, one for each; later bins are kept."""
    spectrum = torch.fft.rfft(g)
    spectrum[..., : len(gains)] *= gains.to(g)
    return torch.fft.irfft(spectrum, n=g.shape[-1])


def generator_of(seed: int, d: int) -> torch.Generator:
    """Made from ``seed``, an integer of any size, and the length alone, so all clients agree.

    The generator itself looks at 32 bits: seeds that are equal modulo 2**32 draw the same.
    """
    return torch.Generator().manual_seed((seed * 1_000_003 + d) % 2**63)


def random_bins(d: int, cutoff: int, seed: int) -> Tensor:
    """``cutoff`` bins drawn from ``seed`` and the length."""
    return torch.randperm(num_bins(d), generator=generator_of(seed, d))[:cutoff]


def _extend(g: Tensor, radius: int, boundary: str) -> Tensor:
    """``g`` with ``radius`` samples added on both sides, by any boundary but ``count``."""
    d = g.shape[-1]
    index = torch.arange(-radius, d + radius, device=g.device)
    if boundary == "circular":
        index = index % d
    elif boundary == "reflect" and radius < d:
        index = index.abs()
        index = torch.where(index >= d, 2 * (d - 1) - index, index)
    else:
        index = index.clamp(0, d - 1)
    return g[..., index]


def smooth(g: Tensor, weights: Tensor, boundary: str) -> Tensor:
    """Convolve with symmetric ``weights`` of odd length that sum to one.

    ``count`` pads with zeros and divides by the weights that lie inside, so a constant stays
    a constant up to the ends. ``reflect`` needs a radius below ``d``; shorter signals are
    extended by ``replicate``.
    """
    radius = weights.numel() // 2
    kernel = weights.to(g)[None, None]
    rows = g.reshape(-1, 1, g.shape[-1])
    if boundary == "count":
        total = F.conv1d(rows, kernel, padding=radius)
        inside = F.conv1d(torch.ones_like(rows[:1]), kernel, padding=radius)
        return (total / inside).reshape(g.shape)
    return F.conv1d(_extend(rows, radius, boundary), kernel).reshape(g.shape)


def gaussian_weights(sigma: float) -> Tensor:
    """A Gaussian cut at ``ceil(4 sigma)`` and renormalised, float64."""
    radius = math.ceil(4 * sigma)
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    return weights / weights.sum()
