"""The filter kinds. This list is the one that specs, commands and benchmarks read."""

from __future__ import annotations

from specgrad_kernels.kinds.base import BOUNDARIES, Bins, Kind, LocalAverage, Numbers
from specgrad_kernels.kinds.centralize import Centralize
from specgrad_kernels.kinds.fft import Fft
from specgrad_kernels.kinds.fft2d import Fft2d
from specgrad_kernels.kinds.fft_high import FftHigh
from specgrad_kernels.kinds.gaussian import Gaussian
from specgrad_kernels.kinds.l2 import L2
from specgrad_kernels.kinds.lap import Lap
from specgrad_kernels.kinds.random_bins import RandomBins
from specgrad_kernels.kinds.spectrum import Spectrum

__all__ = [
    "BOUNDARIES",
    "CONTROLS",
    "FUSED",
    "KINDS",
    "METHODS",
    "Bins",
    "Kind",
    "LocalAverage",
    "Numbers",
]

FUSED = (Fft(), Lap(), Gaussian(), Centralize(), Spectrum())
"""Computed by every backend in one read and one write."""
_CONTROLS = (FftHigh(), RandomBins(), L2(), Fft2d())

KINDS: dict[str, Kind] = {kind.name: kind for kind in (*FUSED, *_CONTROLS)}
METHODS = tuple(KINDS)
CONTROLS = tuple(kind.name for kind in _CONTROLS)
