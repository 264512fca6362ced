"""Kernels on the coarse grid: to the band, times the gains, and back.

The grid is ``[columns, middle, rows]``, filled row by row; ``middle`` and ``rows`` are powers of
two. ``solve`` takes the transform down the columns while it loads (few columns: a sum each),
transforms some lines, scales them and comes back to the lines; ``interpolate`` undoes the
columns. A grid too long for that has ``middle`` before and after. A grid without such factors
is multiplied by its circulant matrix.

``REAL`` is what they compute in, float64 where a GPU is good at it: a wave of the band is a single
value in the middle of the transform, and each rounding there is an error of the whole result. What
they load and store, tables included, keeps the precision of the gradients.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields
from specgrad_kernels.backends.triton.butterflies import (
    add8,
    backward,
    dft8,
    forward,
    load8,
    radix_step,
    store8,
    turn8,
    turn_all,
)
from specgrad_kernels.backends.triton.fields import number


@triton.jit
def _add_columns(r, i, base, places, steps, mask, REAL: tl.constexpr, COUNT: tl.constexpr):
    grid, cosines, sines = places
    row, bins, step = steps
    for _ in tl.static_range(COUNT):
        grid += row
        cosines += bins
        sines += bins
        value = load8(grid, step, mask, REAL)
        value = [value[k] - base[k] for k in (0, 1, 2, 3, 4, 5, 6, 7)]
        r = add8(r, value, tl.load(cosines, mask, 0.0))
        i = add8(i, value, tl.load(sines, mask, 0.0))
    return r, i, (grid, cosines, sines)


@triton.jit
def _transform_columns(places, steps, columns, mask, LANES: tl.constexpr, REAL: tl.constexpr):
    """One bin of the column transform, at eight places; ``steps`` lead from a column to the next,
    from its factors to the next column's, and from a place to the next.

    The first column is taken from the others before they are multiplied: what is common to all
    is then multiplied once, by a power of two, instead of added up with a rounding at each step.
    """
    zeros = [tl.zeros([LANES], REAL) for _ in (0, 1, 2, 3, 4, 5, 6, 7)]
    base = load8(places[0], steps[2], mask, REAL)
    r = add8(zeros, base, tl.load(places[1], mask, 0.0))
    i = zeros
    others = columns - 1
    for _ in range(others // 2):
        r, i, places = _add_columns(r, i, base, places, steps, mask, REAL, 2)
    for _ in range(others % 2):
        r, i, places = _add_columns(r, i, base, places, steps, mask, REAL, 1)
    return r, i


@triton.jit
def _circulant(grid, kernel, cell, cells, known, LANES: tl.constexpr, REAL: tl.constexpr):
    """One row of the circulant matrix for each lane. Four sums: shorter ones lose less.

    The first cell is taken from all and multiplied once, by the sum of the row.
    """
    zero = tl.zeros([LANES], REAL)
    sums = [zero for _ in (0, 1, 2, 3)]
    base = tl.load(grid).to(REAL)
    common = base * tl.load(kernel + 2 * cells - 1)
    kernel += cell + cells - 1
    quarters = cells // 4 * 4
    for start in range(0, quarters, 4):
        values = [tl.load(grid + start + k).to(REAL) - base for k in (0, 1, 2, 3)]
        sums = [sums[k] + values[k] * tl.load(kernel - start - k, known, 0.0) for k in (0, 1, 2, 3)]
    first = sums[0]
    for start in range(quarters, cells):
        first += (tl.load(grid + start).to(REAL) - base) * tl.load(kernel - start, known, 0.0)
    return (first + sums[1]) + (sums[2] + sums[3]) + common


@triton.jit
def solve(programs, coefficients, workspace, REAL: tl.constexpr, LANES: tl.constexpr):
    """Lines from ``FIRST`` on, as many as fit in ``8 * LANES`` values."""
    lane = tl.arange(0, LANES)
    first = number(programs, fields.FIRST)
    columns = number(programs, fields.COLUMNS)
    log = number(programs, fields.LOG_ROWS)
    log_middle = number(programs, fields.LOG_MIDDLE)
    grid = workspace + number(programs, fields.GRID)
    back = workspace + number(programs, fields.BACK)
    matrix = coefficients + number(programs, fields.MATRIX)
    turns = coefficients + number(programs, fields.TURNS) + lane
    if log == 0:
        cells = number(programs, fields.CELLS)
        cell = first + lane
        known = cell < cells
        total = _circulant(grid, matrix, cell, cells, known, LANES, REAL)
        tl.store(back + cell, total, known)
    else:
        row = 1 << log
        step = row >> 3
        line = first + (lane >> (log - 3))
        place = lane & (step - 1)
        bins = columns // 2 + 1
        lines = bins << log_middle
        known = line < lines
        turned = tl.where(log_middle == 0, known, False)
        gains = load8(turns, LANES, known)
        # Between columns and rows: a sample's place is a lane's and a register's.
        by_lane = turns + 8 * LANES
        by_register = matrix + 2 * bins * columns + 8 * line
        cosines, sines = turn_all(
            load8(by_register, 1, turned, REAL),
            load8(by_register + 8 * bins, 1, turned, REAL),
            tl.load(by_lane, turned, 0.0),
            tl.load(by_lane + LANES, turned, 0.0),
            1,
        )
        split = workspace + number(programs, fields.LINES) + line * row + place
        if log_middle > 0:
            r = load8(split, step, known, REAL)
            i = load8(split + lines * row, step, known, REAL)
        else:
            places = (grid + place, matrix + line, matrix + line + bins * columns)
            r, i = _transform_columns(places, (row, bins, step), columns, known, LANES, REAL)
            r, i = turn8(r, i, cosines, sines, 1)
        r, i = forward(r, i, coefficients, lane, log, LANES)
        r = [r[k] * gains[k] for k in (0, 1, 2, 3, 4, 5, 6, 7)]
        i = [i[k] * gains[k] for k in (0, 1, 2, 3, 4, 5, 6, 7)]
        r, i = backward(r, i, coefficients, lane, log, LANES)
        # Every lane stores where it loaded: no other lane's values are lost.
        if log_middle > 0:
            store8(split, step, r, known)
            store8(split + lines * row, step, i, known)
        else:
            r, i = turn8(r, i, cosines, sines, -1)
            paired = known & (line > 0) & (2 * line < columns)
            store8(back + line * row + place, step, r, known)
            store8(back + (columns // 2 + line) * row + place, step, i, paired)


@triton.jit
def middle(
    programs,
    coefficients,
    workspace,
    REAL: tl.constexpr,
    LANES: tl.constexpr,
    INVERSE: tl.constexpr,
):
    """One bin's line as ``[middle, rows]``: transform down some of its columns, 8 or 64 points.

    Forward, from the grid, the column transform comes first; inverse, the result is what
    ``interpolate`` reads.
    """
    WIDE: tl.constexpr = LANES // 8
    lane = tl.arange(0, LANES)
    first = number(programs, fields.FIRST)
    bin = number(programs, fields.BIN)
    columns = number(programs, fields.COLUMNS)
    log = number(programs, fields.LOG_ROWS)
    log_middle = number(programs, fields.LOG_MIDDLE)
    bins = columns // 2 + 1
    row = 1 << log
    points = 1 << log_middle
    many = log_middle > 3
    group = tl.where(many, lane // WIDE, 0)
    place = first + tl.where(many, lane % WIDE, lane)
    known = place < row
    near = group * row + place
    step = (points >> 3) * row
    lines = workspace + number(programs, fields.LINES) + bin * points * row + near
    imaginary = lines + bins * points * row
    matrix = coefficients + number(programs, fields.MATRIX) + bin + 0 * lane
    by_point = coefficients + number(programs, fields.TURNS)
    by_place = by_point + 2 * bins * points
    by_both = by_place + 2 * bins * row
    by_point += bin * points + group
    by_place += bin * row + place
    by_both += near
    point_c = load8(by_point, points >> 3, known)
    point_s = load8(by_point + bins * points, points >> 3, known)
    place_c = tl.load(by_place, known, 0.0)
    place_s = tl.load(by_place + bins * row, known, 0.0)
    if INVERSE:
        r = load8(lines, step, known, REAL)
        i = load8(imaginary, step, known, REAL)
        both_c = load8(by_both, step, known)
        r, i = turn8(r, i, both_c, load8(by_both + points * row, step, known), -1)
        r, i = turn_all(r, i, place_c, place_s, -1)
        if many:
            r, i = radix_step(r, i, coefficients, group, 6, LANES, 5, 1)
        r, i = dft8(r, i, 1)
        r, i = turn8(r, i, point_c, point_s, -1)
        back = workspace + number(programs, fields.BACK) + near
        paired = tl.where((bin > 0) & (2 * bin < columns), known, False)
        store8(back + bin * points * row, step, r, known)
        store8(back + (columns // 2 + bin) * points * row, step, i, paired)
    else:
        grid = workspace + number(programs, fields.GRID) + near
        places = (grid, matrix, matrix + bins * columns)
        r, i = _transform_columns(places, (points * row, bins, step), columns, known, LANES, REAL)
        r, i = turn8(r, i, point_c, point_s, 1)
        r, i = dft8(r, i, -1)
        if many:
            r, i = radix_step(r, i, coefficients, group, 6, LANES, 5, -1)
        both_c = load8(by_both, step, known)
        r, i = turn8(r, i, both_c, load8(by_both + points * row, step, known), 1)
        r, i = turn_all(r, i, place_c, place_s, 1)
        store8(lines, step, r, known)
        store8(imaginary, step, i, known)
