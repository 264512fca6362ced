"""Numbers behind the band projection: grids, windows, gains and weights, in float64.

A signal of ``d`` samples is seen as ``cells`` of ``h`` samples. A Kaiser-Bessel window that is
``w`` cells wide carries it to the coarse grid and back; on that grid the band ``|k| < cutoff``
is a transform of length ``cells = columns * middle * rows``, done as small matrix products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

TILE = 16
"""Cells of one column tile; a tile and its window must fit in twice as many."""
MAX_COLUMNS = 64
MAX_MIDDLE = 64
MAX_ROWS = {False: 256, True: 64}
"""Longest row that a program solves without spilling registers, by double precision."""
MAX_DECIMATION = 64
MAX_WIDTH = 16

_ROUNDING = {False: 3e-8, True: 6e-17}
_TOLERANCE = {False: 1.5e-7, True: 4e-15}
_DENSE_WORK = 1 << 18

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """How one signal is projected: ``d = decimation * columns * middle * rows``."""

    d: int
    cutoff: int
    decimation: int
    width: int
    beta: float
    columns: int
    middle: int
    rows: int
    error: float

    @property
    def cells(self) -> int:
        """Length of the coarse grid."""
        return self.columns * self.middle * self.rows


def window_taps(decimation: int, width: int, beta: float) -> Array:
    """The Kaiser-Bessel window on ``width * decimation`` samples.

    >>> taps = window_taps(4, 2, 5.0)
    >>> bool(np.allclose(taps, taps[::-1])), len(taps)
    (True, 8)
    """
    half = width * decimation / 2
    position = (np.arange(width * decimation) + 0.5 - half) / half
    return np.i0(beta * np.sqrt(1 - position**2)) / np.i0(beta)


def window_spectrum(taps: Array, d: int, bins: NDArray[np.int64]) -> Array:
    """Real transform of the centred window at ``bins`` of a signal of length ``d``."""
    offsets = np.arange(len(taps)) - (len(taps) - 1) / 2
    spectrum = np.empty(len(bins))
    for start in range(0, len(bins), 4096):
        part = bins[start : start + 4096]
        spectrum[start : start + 4096] = np.cos(2 * np.pi / d * np.outer(part, offsets)) @ taps
    return spectrum


def gains(band: Band) -> Array:
    """What bin ``k < cutoff`` is multiplied by on the coarse grid, inverse scaling included."""
    taps = window_taps(band.decimation, band.width, band.beta)
    spectrum = window_spectrum(taps, band.d, np.arange(band.cutoff))
    return band.decimation / (band.cells * spectrum**2)


def _shape_parameter(width: int, oversampling: float) -> float:
    return math.pi * math.sqrt((width / oversampling) ** 2 * (oversampling - 0.5) ** 2 - 0.8)


def projection_error(d: int, cutoff: int, decimation: int, width: int, double: bool) -> float:
    """Expected relative l2 error on a white signal: aliases of the window, and rounding.

    Rounding grows with the window's droop over the band, which the gains undo.
    """
    cells = d // decimation
    taps = window_taps(decimation, width, _shape_parameter(width, cells / (2 * cutoff)))
    bins = np.unique(np.linspace(0, cutoff - 1, 48).astype(np.int64))
    spectrum = window_spectrum(taps, d, bins)
    aliased = sum(
        (window_spectrum(taps, d, bins + alias * cells) / spectrum) ** 2
        for alias in range(-min(3, (decimation - 1) // 2), min(3, decimation // 2) + 1)
        if alias
    )
    droop = (np.abs(taps).sum() / spectrum) ** 2
    band_share = 2 * cutoff / d
    variance = band_share * np.mean(2 * aliased + droop * _ROUNDING[double] ** 2)
    return float(math.sqrt(variance) + 2 * _ROUNDING[double])


def _divisors(number: int, limit: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0]


@lru_cache(maxsize=4096)
def split_cells(cells: int, max_rows: int) -> tuple[int, int, int] | None:
    """``columns, middle, rows`` with the fewest programs, ``middle`` 1 where two suffice.

    >>> split_cells(3072, 256), split_cells(196608, 256), split_cells(997, 256)
    ((64, 1, 48), (64, 48, 64), None)
    """
    two, three = [], []
    for columns in _divisors(cells, MAX_COLUMNS):
        length = cells // columns
        tiles = -(-length // TILE)
        if length <= max_rows:
            programs = tiles + -(-(columns // 2 + 1) // TILE)
            two.append((programs, max(length, TILE), (columns, 1, length)))
            continue
        for middle in _divisors(length, MAX_MIDDLE):
            rows = length // middle
            if middle > 1 and rows <= max_rows:
                three.append((tiles, abs(middle - rows), (columns, middle, rows)))
    return min(two or three)[2] if two or three else None


@lru_cache(maxsize=4096)
def plan_band(d: int, cutoff: int, double: bool) -> Band | None:
    """The coarsest grid that is accurate enough, ``None`` where no grid is.

    >>> band = plan_band(36864, 921, double=False)
    >>> band.decimation, band.cells, band.columns, band.rows
    (12, 3072, 64, 48)
    >>> plan_band(36871, 921, double=False) is None        # a prime has no grid
    True
    """
    for decimation in reversed(_divisors(d, MAX_DECIMATION)):
        cells = d // decimation
        split = split_cells(cells, MAX_ROWS[double])
        oversampling = cells / (2 * cutoff)
        if decimation < 2 or split is None or oversampling < 1.2:
            continue
        for width in range(4, MAX_WIDTH + 1, 2):
            if cells < TILE + width:
                break
            if (width / oversampling) ** 2 * (oversampling - 0.5) ** 2 <= 0.8:
                continue
            error = projection_error(d, cutoff, decimation, width, double)
            if error <= _TOLERANCE[double]:
                beta = _shape_parameter(width, oversampling)
                return Band(d, cutoff, decimation, width, beta, *split, error)
    return None


def suits_dense(d: int, cutoff: int) -> bool:
    """Whether a basis of ``2 * cutoff - 1`` waves is cheap enough to be used as it is."""
    return d * cutoff <= _DENSE_WORK


def column_matrix(columns: int) -> Array:
    """Real transform of length ``columns`` as a square matrix: cosines, then negative sines.

    Row ``k <= columns // 2`` gives the real part of bin ``k``; row ``columns // 2 + k`` the
    imaginary part, for the bins that have one.

    >>> signal = np.arange(6.0)
    >>> spectrum = np.fft.rfft(signal)
    >>> packed = np.concatenate([spectrum.real, spectrum.imag[1:3]])
    >>> bool(np.allclose(column_matrix(6) @ signal, packed))
    True
    """
    cosine, sine = root_matrices(columns)
    return np.concatenate([cosine[: columns // 2 + 1], -sine[1 : (columns + 1) // 2]])


def root_matrices(length: int) -> tuple[Array, Array]:
    """Cosine and sine of ``2 pi j k / length``, both ``[length, length]``."""
    index = np.outer(np.arange(length), np.arange(length)) % length
    angle = 2 * np.pi / length * index
    return np.cos(angle), np.sin(angle)


def box_weights(window: int) -> Array:
    """The moving average of odd width ``window``."""
    return np.full(window, 1 / window)


def gaussian_weights(sigma: float) -> Array:
    """A Gaussian cut at ``ceil(4 sigma)`` and renormalised."""
    radius = math.ceil(4 * sigma)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return weights / weights.sum()
