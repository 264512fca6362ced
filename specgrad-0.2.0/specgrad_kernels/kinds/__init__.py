"""The filter kinds. This list is the one that specs, commands and benchmarks read."""

from __future__ import annotations

from specgrad_kernels.kinds.averages import Gaussian, Lap
from specgrad_kernels.kinds.base import BOUNDARIES, Bins, Kind, LocalAverage, Numbers
from specgrad_kernels.kinds.bins import L2, Fft, Fft2d, FftHigh, RandomBins
from specgrad_kernels.kinds.centralize import Centralize
from specgrad_kernels.kinds.spectrum import Spectrum

__all__ = ["BOUNDARIES", "FUSED", "KINDS", "METHODS", "Bins", "Kind", "LocalAverage", "Numbers"]

FUSED = (Fft(), Lap(), Gaussian(), Centralize(), Spectrum())
"""Computed by every backend in one read and one write."""
_CONTROLS = (FftHigh(), RandomBins(), L2(), Fft2d())
KINDS: dict[str, Kind] = {kind.name: kind for kind in (*FUSED, *_CONTROLS)}
METHODS = tuple(KINDS)
