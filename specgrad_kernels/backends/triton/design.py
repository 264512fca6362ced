"""Windows of the band projection and their error, in float64.

The error of a window is a norm over all frequencies of the band, not of one length's bins: it
holds for every length and every gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_EDGE_STEPS = 400
"""Band edges are rounded up to such parts of a cycle a sample, so that lengths share windows."""
_FREQUENCIES = 129


@dataclass(frozen=True)
class Window:
    """A Kaiser-Bessel window of ``width`` cells of ``hop`` samples.

    ``aliasing`` is the norm of what it adds to the exact projection; ``droop`` how much smaller
    its response is at the band's edge than in the middle, by which rounding grows.
    """

    hop: int
    width: int
    beta: float
    aliasing: float
    droop: float

    def taps(self) -> Array:
        """The window on its ``hop * width`` samples."""
        return kaiser_bessel(self.hop, self.width, self.beta)


def kaiser_bessel(hop: int, width: int, beta: float) -> Array:
    """The window on ``width * hop`` samples.

    >>> taps = kaiser_bessel(4, 2, 5.0)
    >>> bool(np.allclose(taps, taps[::-1])), len(taps)
    (True, 8)
    """
    half = width * hop / 2
    position = (np.arange(width * hop) + 0.5 - half) / half
    return np.i0(beta * np.sqrt(1 - position**2)) / np.i0(beta)


def response(taps: Array, frequencies: Array) -> Array:
    """Real response of the centred window at frequencies in cycles a sample."""
    offsets = np.arange(len(taps)) - (len(taps) - 1) / 2
    parts = np.array_split(frequencies, len(frequencies) // 4096 + 1)
    return np.concatenate([np.cos(2 * np.pi * np.outer(part, offsets)) @ taps for part in parts])


def aliasing_norm(taps: Array, hop: int, edge: float) -> tuple[float, float]:
    """Norm of (window's projection - exact projection) over ``|f| <= edge``, and the droop.

    For one frequency of the coarse grid the error is the block ``[[0, e], [e, e e]]`` of the
    aliases' responses ``e`` relative to the wanted one's.
    """
    frequencies = np.linspace(0, edge, _FREQUENCIES)
    wanted = response(taps, frequencies)
    aliases = sum(
        (response(taps, frequencies + alias / hop) / wanted) ** 2 for alias in range(1, hop)
    )
    block = (aliases + np.sqrt(aliases**2 + 4 * aliases)) / 2
    return float(np.max(block)), float(np.abs(taps).sum() / wanted.min())


def band_edge(d: int, cutoff: int) -> float:
    """The highest frequency of a band, rounded up."""
    return max(math.ceil((cutoff - 1) * _EDGE_STEPS / d), 1) / _EDGE_STEPS


@lru_cache(maxsize=1024)
def best_window(hop: int, width: int, edge: float) -> Window | None:
    """The shape with the smallest aliasing, ``None`` where the grid is too coarse."""
    oversampling = 1 / (2 * hop * edge)
    spread = (width / oversampling) ** 2 * (oversampling - 0.5) ** 2 - 0.8
    if oversampling < 1.2 or spread <= 0:
        return None
    found = []
    for share in np.linspace(0.9, 1.1, 11):
        beta = math.pi * math.sqrt(spread) * float(share)
        aliasing, droop = aliasing_norm(kaiser_bessel(hop, width, beta), hop, edge)
        found.append(Window(hop, width, beta, aliasing, droop))
    return min(found, key=lambda window: window.aliasing)


def gains(window: Window, d: int, cutoff: int) -> Array:
    """What bin ``k < cutoff`` of the coarse transform is multiplied by."""
    wanted = response(window.taps(), np.arange(cutoff) / d)
    return window.hop / wanted**2


def box_weights(window: int) -> Array:
    """The moving average of odd width ``window``."""
    return np.full(window, 1 / window)


def gaussian_weights(sigma: float) -> Array:
    """A Gaussian cut at ``ceil(4 sigma)`` and renormalised."""
    radius = math.ceil(4 * sigma)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return weights / weights.sum()
