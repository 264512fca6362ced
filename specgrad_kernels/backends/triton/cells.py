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
from specgrad_kernels.backends.triton.common import (
    address_of,
    layout_of,
    number,
    offset_of,
    samples_at,
)

INSIDE = tl.constexpr(0)
AROUND = tl.constexpr(1)
ANYHOW = tl.constexpr(2)
"""How samples are reached: in whole vectors, the same across the signal's ends, one by one."""


@triton.jit
def _taps_of(taps, sample, CELL: tl.constexpr, HOP: tl.constexpr, WIDTH: tl.constexpr):
    if CELL < WIDTH:
        values = tl.load(taps + CELL * HOP + sample)
    else:
        values = tl.zeros([1, HOP], taps.dtype.element_ty)
    return values


@triton.jit
def window_of(taps, sample, HOP: tl.constexpr, WIDTH: tl.constexpr):
    """The window's taps on each of its cells; none beyond its width."""
    return (
        _taps_of(taps, sample, 0, HOP, WIDTH),
        _taps_of(taps, sample, 1, HOP, WIDTH),
        _taps_of(taps, sample, 2, HOP, WIDTH),
        _taps_of(taps, sample, 3, HOP, WIDTH),
        _taps_of(taps, sample, 4, HOP, WIDTH),
        _taps_of(taps, sample, 5, HOP, WIDTH),
        _taps_of(taps, sample, 6, HOP, WIDTH),
        _taps_of(taps, sample, 7, HOP, WIDTH),
        _taps_of(taps, sample, 8, HOP, WIDTH),
        _taps_of(taps, sample, 9, HOP, WIDTH),
        _taps_of(taps, sample, 10, HOP, WIDTH),
        _taps_of(taps, sample, 11, HOP, WIDTH),
        _taps_of(taps, sample, 12, HOP, WIDTH),
        _taps_of(taps, sample, 13, HOP, WIDTH),
        _taps_of(taps, sample, 14, HOP, WIDTH),
        _taps_of(taps, sample, 15, HOP, WIDTH),
    )


@triton.jit
def _add(total, window, value, CELL: tl.constexpr, WIDTH: tl.constexpr):
    if CELL >= 0 and CELL < WIDTH:
        total += window[CELL] * value
    return total


@triton.jit
def _windowed(
    address,
    layout,
    window,
    first,
    cells,
    hop,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    HOP: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    WAY: tl.constexpr,
):
    """Products of samples and window for four cells a row, not yet summed over a cell."""
    samples = samples_at(address, ELEMENT, WAY != ANYHOW)
    sample = tl.arange(0, HOP)[None, :]
    cell = first - WIDTH // 2 + 4 * tl.arange(0, ROWS)
    inside = samples + (cell * HOP)[:, None] + sample
    sum0 = tl.zeros([ROWS, HOP], REAL)
    sum1 = tl.zeros([ROWS, HOP], REAL)
    sum2 = tl.zeros([ROWS, HOP], REAL)
    sum3 = tl.zeros([ROWS, HOP], REAL)
    for step in tl.static_range(WIDTH + 3):
        if WAY == INSIDE:
            value = tl.load(inside + step * HOP).to(REAL)
        else:
            near = cell + step
            wanted = (near < cells + WIDTH // 2)[:, None]
            if WAY == AROUND:
                near = tl.where(near < 0, near + cells, near)
                near = tl.where(near >= cells, near - cells, near)
                place = samples + (near * HOP)[:, None] + sample
            else:
                near = near % cells
                near = tl.where(near < 0, near + cells, near)
                wanted = wanted & (sample < hop)
                place = samples + offset_of((near * hop)[:, None] + sample, layout)
            value = tl.load(place, mask=wanted, other=0.0).to(REAL)
        sum0 = _add(sum0, window, value, step, WIDTH)
        sum1 = _add(sum1, window, value, step - 1, WIDTH)
        sum2 = _add(sum2, window, value, step - 2, WIDTH)
        sum3 = _add(sum3, window, value, step - 3, WIDTH)
    return sum0, sum1, sum2, sum3


@triton.jit
def spread(
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
    """The windowed sum around each of ``4 * ROWS`` cells."""
    first = tl.multiple_of(number(programs, fields.FIRST), 4)
    cells = number(programs, fields.CELLS)
    hop = number(programs, fields.HOP)
    grid = workspace + tl.multiple_of(number(programs, fields.GRID), 16)
    layout = layout_of(table, programs)
    address = address_of(pointers, table, programs, ELEMENT)
    taps = coefficients + tl.multiple_of(number(programs, fields.TAPS), 16)
    window = window_of(taps, tl.arange(0, HOP)[None, :], HOP, WIDTH)
    wide = (number(programs, fields.PLAIN) == 1) & (address % 16 == 0)
    if wide & (first >= WIDTH // 2) & (first + 4 * ROWS + WIDTH // 2 <= cells):
        sum0, sum1, sum2, sum3 = _windowed(
            address, layout, window, first, cells, hop, ELEMENT, REAL, HOP, WIDTH, ROWS, INSIDE
        )
    elif wide:
        sum0, sum1, sum2, sum3 = _windowed(
            address, layout, window, first, cells, hop, ELEMENT, REAL, HOP, WIDTH, ROWS, AROUND
        )
    else:
        sum0, sum1, sum2, sum3 = _windowed(
            address, layout, window, first, cells, hop, ELEMENT, REAL, HOP, WIDTH, ROWS, ANYHOW
        )
    even = tl.join(tl.sum(sum0, 1), tl.sum(sum2, 1))
    odd = tl.join(tl.sum(sum1, 1), tl.sum(sum3, 1))
    cell = first + tl.arange(0, 4 * ROWS)
    tl.store(grid + cell, tl.reshape(tl.join(even, odd), [4 * ROWS]), mask=cell < cells)


@triton.jit
def _reach(
    address,
    layout,
    cell,
    cells,
    hop,
    ELEMENT: tl.constexpr,
    HOP: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Where the samples of these cells are, and which of them are the signal's."""
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
    address,
    layout,
    cell,
    cells,
    hop,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    HOP: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The samples of four cells a row."""
    place0, known0 = _reach(address, layout, cell, cells, hop, ELEMENT, HOP, WIDE)
    place1, known1 = _reach(address, layout, cell + 1, cells, hop, ELEMENT, HOP, WIDE)
    place2, known2 = _reach(address, layout, cell + 2, cells, hop, ELEMENT, HOP, WIDE)
    place3, known3 = _reach(address, layout, cell + 3, cells, hop, ELEMENT, HOP, WIDE)
    return (
        tl.load(place0, mask=known0, other=0.0).to(REAL),
        tl.load(place1, mask=known1, other=0.0).to(REAL),
        tl.load(place2, mask=known2, other=0.0).to(REAL),
        tl.load(place3, mask=known3, other=0.0).to(REAL),
    )


@triton.jit
def _put_four(
    values,
    address,
    layout,
    cell,
    cells,
    hop,
    ELEMENT: tl.constexpr,
    HOP: tl.constexpr,
    WIDE: tl.constexpr,
):
    place0, known0 = _reach(address, layout, cell, cells, hop, ELEMENT, HOP, WIDE)
    place1, known1 = _reach(address, layout, cell + 1, cells, hop, ELEMENT, HOP, WIDE)
    place2, known2 = _reach(address, layout, cell + 2, cells, hop, ELEMENT, HOP, WIDE)
    place3, known3 = _reach(address, layout, cell + 3, cells, hop, ELEMENT, HOP, WIDE)
    tl.store(place0, values[0].to(ELEMENT), mask=known0)
    tl.store(place1, values[1].to(ELEMENT), mask=known1)
    tl.store(place2, values[2].to(ELEMENT), mask=known2)
    tl.store(place3, values[3].to(ELEMENT), mask=known3)


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
    first = tl.multiple_of(number(programs, fields.FIRST), 4)
    cells = number(programs, fields.CELLS)
    hop = number(programs, fields.HOP)
    columns = number(programs, fields.COLUMNS)
    log = number(programs, fields.LOG_ROWS) + number(programs, fields.LOG_MIDDLE)
    back = workspace + tl.multiple_of(number(programs, fields.BACK), 16)
    scratch = workspace + tl.multiple_of(number(programs, fields.GRID), 16)
    taps = coefficients + tl.multiple_of(number(programs, fields.TAPS), 16)
    matrix = coefficients + tl.multiple_of(number(programs, fields.MATRIX), 16)
    layout = layout_of(table, programs)
    address = address_of(pointers, table, programs, ELEMENT)
    wide = (number(programs, fields.PLAIN) == 1) & (address % 16 == 0)

    row = tl.arange(0, ROWS)
    cell = tl.where(4 * row < CELLS - WIDTH, first + 4 * row, cells)
    if wide:
        x0, x1, x2, x3 = _four(address, layout, cell, cells, hop, ELEMENT, REAL, HOP, True)
    else:
        x0, x1, x2, x3 = _four(address, layout, cell, cells, hop, ELEMENT, REAL, HOP, False)

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

    window = window_of(taps, tl.arange(0, HOP)[None, :], HOP, WIDTH)
    for step in tl.static_range(WIDTH + 3):
        value = tl.load(scratch + 4 * row + step, mask=4 * row + step < CELLS, other=0.0)[:, None]
        x0 = _add(x0, window, value, WIDTH - 1 - step, WIDTH)
        x1 = _add(x1, window, value, WIDTH - step, WIDTH)
        x2 = _add(x2, window, value, WIDTH + 1 - step, WIDTH)
        x3 = _add(x3, window, value, WIDTH + 2 - step, WIDTH)
    if wide:
        _put_four((x0, x1, x2, x3), address, layout, cell, cells, hop, ELEMENT, HOP, True)
    else:
        _put_four((x0, x1, x2, x3), address, layout, cell, cells, hop, ELEMENT, HOP, False)
