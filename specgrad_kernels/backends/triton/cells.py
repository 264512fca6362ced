"""Kernels between samples and cells: ``spread`` to the coarse grid, ``interpolate`` and subtract.

A cell is ``HOP`` samples, a window ``WIDTH`` cells. A lane's row is four neighbouring cells:
every vector of samples is loaded once and multiplied into the four, with the window in
registers and no shared memory. A signal whose cells are shorter than ``HOP``, whose samples
are no single run or whose address is no multiple of 16 bytes goes the same way sample by
sample; every program decides for itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields
from specgrad_kernels.backends.triton.fields import find_signal, number, offset_of, samples_at

INSIDE, AROUND, ANYHOW = map(tl.constexpr, range(3))
"""How samples are reached: in whole vectors, the same across the signal's ends, one by one."""


@triton.jit
def window_of(taps, HOP: tl.constexpr, WIDTH: tl.constexpr):
    """The window's taps on each of its cells; nothing beyond its width."""
    sample = tl.arange(0, HOP)[None, :]
    return [
        tl.load(taps + cell * HOP + sample) if cell < WIDTH else 0.0
        for cell in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    ]


@triton.jit
def _add(total, taps, value, CELL: tl.constexpr, WIDTH: tl.constexpr):
    if CELL >= 0 and CELL < WIDTH:
        total += taps[CELL] * value
    return total


@triton.jit
def _samples(signal, cell, HOP: tl.constexpr, WIDTH: tl.constexpr, WAY: tl.constexpr, step):
    """The samples ``step`` cells on; beyond the reach of a window on the signal nothing."""
    samples, layout, cells, hop = signal
    sample = tl.arange(0, HOP)[None, :]
    if WAY == INSIDE:
        value = tl.load(samples + (cell * HOP)[:, None] + sample + step * HOP)
    else:
        cell += step
        wanted = (cell < cells + WIDTH // 2)[:, None]
        if WAY == AROUND:
            near = tl.where(cell < 0, cell + cells, cell)
            near = tl.where(near >= cells, near - cells, near)
            place = samples + (near * HOP)[:, None] + sample
        else:
            near = cell % cells
            near = tl.where(near < 0, near + cells, near)
            wanted = wanted & (sample < hop)
            place = samples + offset_of((near * hop)[:, None] + sample, layout)
        value = tl.load(place, mask=wanted, other=0.0)
    return value


@triton.jit
def _windowed(
    signal,
    taps,
    window,
    ELEMENT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    WAY: tl.constexpr,
):
    """Products of samples and window for four cells a row, not yet summed over a cell.

    From both ends to the middle, where the window is largest: small terms are added first.
    """
    LAST: tl.constexpr = WIDTH + 2
    HOP: tl.constexpr = window[0].shape[1]
    REAL: tl.constexpr = window[0].dtype
    address, layout, first, cells, hop = signal
    signal = (samples_at(address, ELEMENT, WAY != ANYHOW), layout, cells, hop)
    cell = first - WIDTH // 2 + 4 * tl.arange(0, ROWS)
    zero = tl.zeros([ROWS, HOP], REAL)
    sums = [zero for _ in (0, 1, 2, 3)]
    if WAY == ANYHOW:
        # A loop that loads the window: beside places of samples there are no registers for it.
        for turn in range(LAST + 1):
            step = turn // 2 if turn % 2 == 0 else LAST - turn // 2
            value = _samples(signal, cell, HOP, WIDTH, WAY, step).to(REAL)
            tap = step * HOP + tl.arange(0, HOP)[None, :]
            near = [
                tl.load(taps + tap - k * HOP, (tap >= k * HOP) & (tap < (k + WIDTH) * HOP), 0.0)
                for k in (0, 1, 2, 3)
            ]
            sums = [sums[k] + near[k] * value for k in (0, 1, 2, 3)]
    else:
        for step in tl.static_range(LAST // 2 + 1):
            value = _samples(signal, cell, HOP, WIDTH, WAY, step).to(REAL)
            sums = [_add(sums[k], window, value, step - k, WIDTH) for k in (0, 1, 2, 3)]
            if step < LAST // 2:
                value = _samples(signal, cell, HOP, WIDTH, WAY, LAST - step).to(REAL)
                sums = [_add(sums[k], window, value, LAST - step - k, WIDTH) for k in (0, 1, 2, 3)]
    return sums


@triton.jit
def spread(
    pointers,
    table,
    programs,
    coefficients,
    workspace,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    SUM: tl.constexpr,
    HOP: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The windowed sum around each of ``4 * ROWS`` cells."""
    first = tl.multiple_of(number(programs, fields.FIRST), 4)
    cells = number(programs, fields.CELLS)
    hop = number(programs, fields.HOP)
    grid = workspace + tl.multiple_of(number(programs, fields.GRID), 16)
    address, layout = find_signal(pointers, table, programs, ELEMENT)
    taps = coefficients + tl.multiple_of(number(programs, fields.TAPS), 16)
    window = window_of(taps, HOP, WIDTH)
    wide = (number(programs, fields.PLAIN) == 1) & (address % 16 == 0)
    signal = (address, layout, first, cells, hop)
    if wide & (first >= WIDTH // 2) & (first + 4 * ROWS + WIDTH // 2 <= cells):
        sums = _windowed(signal, taps, window, ELEMENT, WIDTH, ROWS, INSIDE)
    elif wide:
        sums = _windowed(signal, taps, window, ELEMENT, WIDTH, ROWS, AROUND)
    else:
        sums = _windowed(signal, taps, window, ELEMENT, WIDTH, ROWS, ANYHOW)
    # A rounding of these sums is one of the whole cell.
    totals = [tl.sum(sums[k].to(SUM), 1).to(REAL) for k in (0, 1, 2, 3)]
    even = tl.join(totals[0], totals[2])
    odd = tl.join(totals[1], totals[3])
    cell = first + tl.arange(0, 4 * ROWS)
    tl.store(grid + cell, tl.reshape(tl.join(even, odd), [4 * ROWS]), mask=cell < cells)


@triton.jit
def _reach(signal, cell, ELEMENT: tl.constexpr, HOP: tl.constexpr, WIDE: tl.constexpr):
    """Where the samples of these cells are, and which of them are the signal's."""
    address, layout, cells, hop = signal
    samples = samples_at(address, ELEMENT, WIDE)
    sample = tl.arange(0, HOP)[None, :]
    known = ((cell >= 0) & (cell < cells))[:, None]
    if WIDE:
        place = samples + (cell * HOP)[:, None] + sample
    else:
        known = known & (sample < hop)
        place = samples + offset_of((cell * hop)[:, None] + sample, layout)
    return place, known


@triton.jit
def _four(
    signal, cell, ELEMENT: tl.constexpr, REAL: tl.constexpr, HOP: tl.constexpr, WIDE: tl.constexpr
):
    """The samples of four cells a row."""
    reached = [_reach(signal, cell + k, ELEMENT, HOP, WIDE) for k in (0, 1, 2, 3)]
    return [tl.load(reached[k][0], mask=reached[k][1], other=0.0).to(REAL) for k in (0, 1, 2, 3)]


@triton.jit
def _put_four(values, signal, cell, ELEMENT: tl.constexpr, HOP: tl.constexpr, WIDE: tl.constexpr):
    for k in tl.static_range(4):
        place, known = _reach(signal, cell + k, ELEMENT, HOP, WIDE)
        tl.store(place, values[k].to(ELEMENT), mask=known)


@triton.jit
def _add_rows(total, lines, matrix, row, columns, COUNT: tl.constexpr):
    for _ in tl.static_range(COUNT):
        total -= tl.load(lines) * tl.load(matrix)
        lines += row
        matrix += columns
    return total, lines, matrix


@triton.jit
def _negative_coarse(lines, matrix, cell, log, columns, REAL: tl.constexpr, CELLS: tl.constexpr):
    """The coarse grid at ``cell`` from the rows of its column transform, with its sign changed.

    Nine rows, which most grids have, are loaded together and waited for once; others in threes.
    """
    column = cell >> log
    lines += cell - (column << log)
    matrix += column
    row = 1 << log
    total = tl.zeros([CELLS], REAL)
    if columns == 9:
        total, lines, matrix = _add_rows(total, lines, matrix, row, 9, 9)
    else:
        for _ in range(columns // 3):
            total, lines, matrix = _add_rows(total, lines, matrix, row, columns, 3)
        for _ in range(columns % 3):
            total, lines, matrix = _add_rows(total, lines, matrix, row, columns, 1)
    return total


@triton.jit
def interpolate(
    pointers,
    table,
    programs,
    coefficients,
    workspace,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    HOP: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Subtract the window's sum over the coarse grid from ``4 * ROWS - WIDTH`` cells."""
    CELLS: tl.constexpr = 4 * ROWS
    HALF: tl.constexpr = WIDTH // 2
    first = tl.multiple_of(number(programs, fields.FIRST), 4)
    cells = number(programs, fields.CELLS)
    hop = number(programs, fields.HOP)
    columns = number(programs, fields.COLUMNS)
    log = number(programs, fields.LOG_ROWS) + number(programs, fields.LOG_MIDDLE)
    back = workspace + tl.multiple_of(number(programs, fields.BACK), 16)
    scratch = workspace + tl.multiple_of(number(programs, fields.GRID), 16)
    taps = coefficients + tl.multiple_of(number(programs, fields.TAPS), 16)
    matrix = coefficients + tl.multiple_of(number(programs, fields.MATRIX), 16)
    address, layout = find_signal(pointers, table, programs, ELEMENT)
    wide = (number(programs, fields.PLAIN) == 1) & (address % 16 == 0)

    signal = (address, layout, cells, hop)
    row = tl.arange(0, ROWS)
    cell = tl.where(4 * row < CELLS - WIDTH, first + 4 * row, cells)
    if wide:
        x = _four(signal, cell, ELEMENT, REAL, HOP, True)
    else:
        x = _four(signal, cell, ELEMENT, REAL, HOP, False)

    place = tl.arange(0, CELLS)
    near = first - WIDTH // 2 + 1 + place
    near = tl.where(near < 0, near + cells, near)
    near = tl.where(near >= cells, near - cells, near)
    # A short grid may be passed more than once; only what is near its cells is used.
    near = tl.where((near < 0) | (near >= cells), 0, near)
    coarse = _negative_coarse(back, matrix, near, log, columns, REAL, CELLS)
    # A place that does not look like a run is stored from the lanes that have it: a wide store
    # would exchange values between lanes first, for every row of the sum.
    tl.store(scratch + tl.where(near >= 0, place, 0), coarse)
    # The cells were stored by some warps and are read by all.
    tl.debug_barrier()

    window = window_of(taps, HOP, WIDTH)
    near = scratch + 4 * row
    coarse = [
        tl.load(near + step, mask=4 * row + step < CELLS, other=0.0)[:, None]
        if step < WIDTH + 3
        else 0.0
        for step in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18)
    ]
    # The largest taps first: what a wave of the band leaves is then small, and so is its rounding.
    for away in tl.static_range(HALF):
        x = [x[k] + window[HALF - 1 - away] * coarse[HALF + away + k] for k in (0, 1, 2, 3)]
        x = [x[k] + window[HALF + away] * coarse[HALF - 1 - away + k] for k in (0, 1, 2, 3)]
    if wide:
        _put_four(x, signal, cell, ELEMENT, HOP, True)
    else:
        _put_four(x, signal, cell, ELEMENT, HOP, False)
