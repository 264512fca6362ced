"""Kernels on the coarse grid: to the band, times the gains, and back.

The grid is ``[columns, middle, rows]``, filled row by row; ``middle`` and ``rows`` are powers of
two. ``solve`` takes the transform down the columns while it loads (few columns: a sum each),
transforms some lines, scales them and comes back to the lines; ``interpolate`` undoes the
columns. A grid too long for that has ``middle`` before and after. A grid without such factors
is multiplied by its circulant matrix.

Transforms of powers of two run on eight registers a lane. A line of ``2**log`` complex values lies
in ``2**(log - 3)`` neighbouring lanes: value ``lane + 2**(log - 3) * register``. A step of eight
runs over the registers of every lane, a turn follows, and an exchange brings the next three bits of
the lane's number into the registers. The way back does the same in reverse, so every value returns
to its own lane.

``REAL`` is what they compute in, float64 where a GPU is good at it: a wave of the band is a single
value in the middle of the transform, and each rounding there is an error of the whole result. What
they load and store, tables included, keeps the precision of the gradients.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields
from specgrad_kernels.backends.triton.fields import number

ROOT_OFFSETS = {64: 0, 512: 128, 32: 1152, 256: 1216, 2048: 1728}
"""Where the turns of a transform of each length begin among the coefficients: first those of lines
that are done in steps of eight alone."""
_ROOTS = tl.constexpr(ROOT_OFFSETS)
_STEPS = tl.constexpr((11, 9, 8, 6, 5))


@triton.jit
def load8(place, step, mask, REAL: tl.constexpr = None):
    """Eight values, ``step`` apart, in the precision to compute with where that is named."""
    TYPE: tl.constexpr = place.dtype.element_ty if REAL is None else REAL
    return [tl.load(place + k * step, mask, 0.0).to(TYPE) for k in (0, 1, 2, 3, 4, 5, 6, 7)]


@triton.jit
def store8(place, step, x, mask):
    """Eight values, ``step`` apart."""
    for k in tl.static_range(8):
        tl.store(place + k * step, x[k], mask)


@triton.jit
def add8(x, value, factor):
    """``x + value * factor``, eight times with one factor."""
    return [x[k] + value[k] * factor for k in (0, 1, 2, 3, 4, 5, 6, 7)]


@triton.jit
def turn8(r, i, c, s, SIGN: tl.constexpr):
    """Each of eight values times its ``c + SIGN * i * s``."""
    real = [r[k] * c[k] - SIGN * i[k] * s[k] for k in (0, 1, 2, 3, 4, 5, 6, 7)]
    imaginary = [i[k] * c[k] + SIGN * r[k] * s[k] for k in (0, 1, 2, 3, 4, 5, 6, 7)]
    return real, imaginary


@triton.jit
def turn_all(r, i, c, s, SIGN: tl.constexpr):
    """Eight values, all turned by one angle."""
    return turn8(r, i, (c, c, c, c, c, c, c, c), (s, s, s, s, s, s, s, s), SIGN)


@triton.jit
def dft4(ar, ai, br, bi, cr, ci, dr, di, SIGN: tl.constexpr):
    """Four points; ``SIGN`` is -1 forward and 1 back."""
    even_r, even_i, odd_r, odd_i = ar + cr, ai + ci, ar - cr, ai - ci
    sum_r, sum_i, diff_r, diff_i = br + dr, bi + di, br - dr, bi - di
    side_r, side_i = -SIGN * diff_i, SIGN * diff_r
    low = (even_r + sum_r, even_i + sum_i, odd_r + side_r, odd_i + side_i)
    high = (even_r - sum_r, even_i - sum_i, odd_r - side_r, odd_i - side_i)
    return low + high


@triton.jit
def dft8(r, i, SIGN: tl.constexpr):
    """Eight points, over the registers."""
    HALF: tl.constexpr = 0.7071067811865476
    a0, b0, a1, b1, a2, b2, a3, b3 = dft4(r[0], i[0], r[2], i[2], r[4], i[4], r[6], i[6], SIGN)
    c0, d0, c1, d1, c2, d2, c3, d3 = dft4(r[1], i[1], r[3], i[3], r[5], i[5], r[7], i[7], SIGN)
    c1, d1 = HALF * (c1 - SIGN * d1), HALF * (d1 + SIGN * c1)
    c2, d2 = -SIGN * d2, SIGN * c2
    c3, d3 = -HALF * (c3 + SIGN * d3), HALF * (SIGN * c3 - d3)
    real = (a0 + c0, a1 + c1, a2 + c2, a3 + c3, a0 - c0, a1 - c1, a2 - c2, a3 - c3)
    imaginary = (b0 + d0, b1 + d1, b2 + d2, b3 + d3, b0 - d0, b1 - d1, b2 - d2, b3 - d3)
    return real, imaginary


@triton.jit
def dft4_twice(r, i, SIGN: tl.constexpr):
    """Four points over the even registers, four over the odd ones."""
    a0, b0, a2, b2, a4, b4, a6, b6 = dft4(r[0], i[0], r[2], i[2], r[4], i[4], r[6], i[6], SIGN)
    a1, b1, a3, b3, a5, b5, a7, b7 = dft4(r[1], i[1], r[3], i[3], r[5], i[5], r[7], i[7], SIGN)
    return (a0, a1, a2, a3, a4, a5, a6, a7), (b0, b1, b2, b3, b4, b5, b6, b7)


@triton.jit
def join8(x, LANES: tl.constexpr):
    """Eight registers as the last axis of one tensor."""
    low = tl.join(tl.join(x[0], x[4]), tl.join(x[2], x[6]))
    high = tl.join(tl.join(x[1], x[5]), tl.join(x[3], x[7]))
    return tl.reshape(tl.join(low, high), [LANES, 8])


@triton.jit
def split8(x, LANES: tl.constexpr):
    """The last axis of a tensor as eight registers."""
    even, odd = tl.split(tl.reshape(x, [LANES, 2, 2, 2]))
    x04, x26 = tl.split(even)
    x15, x37 = tl.split(odd)
    x0, x4 = tl.split(x04)
    x2, x6 = tl.split(x26)
    x1, x5 = tl.split(x15)
    x3, x7 = tl.split(x37)
    return (x0, x1, x2, x3, x4, x5, x6, x7)


@triton.jit
def exchange(r, i, LANES: tl.constexpr, BELOW: tl.constexpr, BITS: tl.constexpr):
    """Swap ``BITS`` bits of the lane, ``BELOW`` bits from its lowest, with as many upper bits of
    the register; its own inverse."""
    NEAR: tl.constexpr = 1 << BELOW
    SIDE: tl.constexpr = 1 << BITS
    both = tl.join(join8(r, LANES), join8(i, LANES))
    both = tl.reshape(both, [LANES // NEAR // SIDE, SIDE, NEAR, SIDE, 16 // SIDE])
    both = tl.reshape(tl.permute(both, (0, 3, 2, 1, 4)), [LANES, 8, 2])
    real, imaginary = tl.split(both)
    return split8(real, LANES), split8(imaginary, LANES)


@triton.jit
def turn_by_roots(r, i, roots, lane, LOG: tl.constexpr, SIGN: tl.constexpr):
    """Between two steps of ``2**LOG`` values: turn each by the product of lane and register."""
    ROW: tl.constexpr = 1 << (LOG - 3)
    place = roots + _ROOTS[1 << LOG] + lane % ROW
    return turn8(r, i, load8(place, ROW, True), load8(place + 8 * ROW, ROW, True), SIGN)


@triton.jit
def radix_step(
    r, i, roots, lane, LOG: tl.constexpr, LANES: tl.constexpr, LOW: tl.constexpr, SIGN: tl.constexpr
):
    """The next step of a transform of ``2**LOG`` values, forward (-1), or undone (1).

    The next bits of the lane, from bit ``LOW`` on, become the register's.
    """
    BITS: tl.constexpr = 2 if LOG == 5 else 3
    if SIGN == 1:
        r, i = dft4_twice(r, i, 1) if BITS == 2 else dft8(r, i, 1)
        r, i = exchange(r, i, LANES, LOW, BITS)
    r, i = turn_by_roots(r, i, roots, lane, LOG, -SIGN)
    if SIGN == -1:
        r, i = exchange(r, i, LANES, LOW, BITS)
        r, i = dft4_twice(r, i, -1) if BITS == 2 else dft8(r, i, -1)
    return r, i


@triton.jit
def _step_of(r, i, roots, lane, log, LOG: tl.constexpr, LANES: tl.constexpr, SIGN: tl.constexpr):
    """The step of ``2**LOG`` values, for lines that take it: each goes on with three bits less."""
    wanted = log == LOG
    if LOG <= 8:
        wanted = wanted | (log == LOG + 3)
    if LOG <= 5:
        wanted = wanted | (log == LOG + 6)
    if wanted:
        r, i = radix_step(r, i, roots, lane, LOG, LANES, LOG - 6 if LOG > 6 else 0, SIGN)
    return r, i


@triton.jit
def transform(r, i, roots, lane, log, LANES: tl.constexpr, SIGN: tl.constexpr):
    """To the spectrum (-1), where ``numbers.bin_order`` says which values lie where; or from it,
    unscaled, every step undone (1)."""
    if SIGN == -1:
        r, i = dft8(r, i, -1)
    for k in tl.static_range(5):
        if LANES >= 256 or _STEPS[k if SIGN == -1 else 4 - k] < 11:
            r, i = _step_of(r, i, roots, lane, log, _STEPS[k if SIGN == -1 else 4 - k], LANES, SIGN)
    if SIGN == 1:
        r, i = dft8(r, i, 1)
    return r, i


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
        r, i = transform(r, i, coefficients, lane, log, LANES, -1)
        r = [r[k] * gains[k] for k in (0, 1, 2, 3, 4, 5, 6, 7)]
        i = [i[k] * gains[k] for k in (0, 1, 2, 3, 4, 5, 6, 7)]
        r, i = transform(r, i, coefficients, lane, log, LANES, 1)
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
        r, i = dft8(r, i, 1)
        if many:
            r, i = exchange(r, i, LANES, 5, 3)
            r, i = turn_by_roots(r, i, coefficients, group, 6, -1)
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
