"""Coefficients of the band kernels, in float64 and in the order in which lanes load them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from specgrad_kernels import design
from specgrad_kernels.backends.triton.coarse_grid import CoarseGrid, Window
from specgrad_kernels.backends.triton.grid_fft import ROOT_OFFSETS
from specgrad_kernels.design import Array
from specgrad_kernels.kinds import LocalAverage


def taps(window: Window | None, hop: int, width: int) -> Array:
    """The window, ``[width, hop]``; cells that are shorter than ``hop`` are filled with zeros."""
    padded = np.zeros((width, hop))
    if window is None:
        padded[width // 2, 0] = 1
    else:
        padded[:, : window.hop] = window.taps().reshape(width, window.hop)
    return padded


def gains(grid: CoarseGrid, removed: Array) -> Array:
    """Gain of each bin of the coarse grid, inverse scaling included."""
    spectrum = np.zeros(grid.cells // 2 + 1)
    if grid.window is None:
        spectrum[: len(removed)] = removed / grid.cells
    else:
        taps = grid.window.taps()
        spectrum[: len(removed)] = design.window_gains(taps, grid.hop, grid.d, removed)
    return spectrum


def circulant(grid: CoarseGrid, gains: Array) -> Array:
    """The circulant matrix' first column, from ``1 - cells`` to ``cells - 1``, and its sum."""
    kernel = np.fft.irfft(gains * grid.cells, n=grid.cells)
    return np.concatenate([kernel[1:], kernel, [gains[0] * grid.cells]])


def cosine_and_sine(turns: Array) -> Array:
    """Cosines and negative sines of so many turns, one after the other."""
    return np.stack([np.cos(2 * np.pi * turns), -np.sin(2 * np.pi * turns)])


def power_share(columns: int) -> float:
    """The largest power of two up to ``columns``, as a share of it."""
    return float(2 ** (columns.bit_length() - 1) / columns)


def columns_forward(columns: int) -> Array:
    """``[2, columns, bins]``: real and imaginary part of the column transform, where the first
    column was subtracted from the others.

    What they have in common is left in bin 0. The scale makes its factor a power of two, so that
    a constant passes without rounding.

    >>> x = np.array([3.0, 4.0, 7.0])
    >>> real, imaginary = np.concatenate([x[:1], x[1:] - x[0]]) @ columns_forward(3)
    >>> bool(np.allclose(real + 1j * imaginary, np.fft.rfft(x) * 2 / 3))
    True
    """
    bins = np.arange(columns // 2 + 1)
    waves = cosine_and_sine(np.outer(np.arange(columns), bins) % columns / columns)
    waves[0, 0, 1:] = 0
    waves[0, 0, 0] = columns
    return waves * power_share(columns)


def column_tables(columns: int) -> Array:
    """``columns_forward``, and the twiddles of the registers, ``[2, 8, bins]``."""
    bins = np.arange(columns // 2 + 1)
    by_register = cosine_and_sine(np.outer(np.arange(8), bins) / (8 * columns))
    return np.concatenate([columns_forward(columns).ravel(), by_register.ravel()])


def columns_back(columns: int) -> Array:
    """``[columns, columns]``: from real rows, then imaginary rows, to the columns.

    A bin between the first and the last stands for its mirror image too.

    >>> x = np.arange(6.0)
    >>> spectrum = np.fft.rfft(x)
    >>> packed = np.concatenate([spectrum.real, spectrum.imag[1:3]])
    >>> bool(np.allclose(packed @ columns_back(6) / 6, x))
    True
    """
    bins = np.arange(columns // 2 + 1)
    cosine, sine = cosine_and_sine(np.outer(bins, np.arange(columns)) % columns / columns)
    paired = (bins > 0) & (2 * bins < columns)
    return np.concatenate([np.where(paired, 2.0, 1.0)[:, None] * cosine, 2 * sine[paired]])


def bin_order(log: int, lanes: int) -> NDArray[np.int64]:
    """Bin that ``grid_fft.line_fft`` leaves in each register and lane, ``[8, lanes]``."""
    bins = np.tile(np.arange(8), (lanes, 1))
    weight, below = 8, log - 3
    while below > 0:
        bits = min(below, 3)
        below -= bits
        side = 1 << bits
        shape = (-1, side, 1 << below, side, 8 >> bits)
        bins = bins.reshape(shape).transpose(0, 3, 2, 1, 4).reshape(lanes, 8)
        bins = bins + weight * (np.arange(8) >> (3 - bits))
        weight <<= bits
    return bins.T


def line_tables(grid: CoarseGrid, gains: Array, first: int, lanes: int) -> Array:
    """Gains of one program of ``filter_grid``, and the twiddles of its lanes where lines are not
    split."""
    middle, low = 1 << grid.log_middle, grid.log_rows - 3
    lines = (grid.columns // 2 + 1) * middle
    lane = np.arange(lanes)
    line, place = first + (lane >> low), lane & ((1 << low) - 1)
    lowest = line // middle + grid.columns * (line % middle)
    bins = lowest + grid.columns * middle * bin_order(grid.log_rows, lanes)
    bins = bins % grid.cells
    scale = gains[np.minimum(bins, grid.cells - bins)] * (line < lines)
    scale /= power_share(grid.columns)
    if grid.log_middle:
        return scale
    return np.concatenate([scale, cosine_and_sine(place * lowest / grid.cells)])


def middle_twiddles(columns: int, log_middle: int, log_rows: int) -> Array:
    """Twiddles around the FFT along ``middle``: by its points, by columns, by both."""
    bins, point, place = map(np.arange, (columns // 2 + 1, 1 << log_middle, 1 << log_rows))
    by_point = np.outer(bins, point) / (columns << log_middle)
    by_place = np.outer(bins, place) / (columns << log_middle + log_rows)
    by_both = np.outer(point, place) / (1 << log_middle + log_rows)
    parts = (by_point, by_place, by_both)
    return np.concatenate([cosine_and_sine(turns).ravel() for turns in parts])


def roots(logs: Iterable[int]) -> Array:
    """Twiddles between the steps of ``grid_fft.line_fft`` for lines of such lengths."""
    needed = {1 << step for log in logs for step in range(log, 3, -3)}
    parts = [np.empty(0)]
    for length in ROOT_OFFSETS:
        if needed:
            turns = np.outer(np.arange(8), np.arange(length // 8)) / length
            parts.append(cosine_and_sine(turns).ravel())
        needed.discard(length)
    return np.concatenate(parts)


def weights(average: LocalAverage) -> Array:
    """The weights from one end to the other, between 16 zeros each, and their running sums."""
    both = np.concatenate([average.weights[:0:-1], average.weights])
    return np.concatenate([np.pad(both, 16), [0.0], np.cumsum(both)])
