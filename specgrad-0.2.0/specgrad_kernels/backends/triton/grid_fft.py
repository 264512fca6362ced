"""Kernels on the coarse grid: FFT, gains of the band, inverse FFT.

The grid is ``[columns, middle, rows]``, row-major; ``middle`` and ``rows`` are powers of two.
``filter_grid`` computes the DFT down the columns while it loads (few columns: a sum each), then an
FFT along some lines of ``rows`` values, the gains and the inverse FFT; ``interpolate`` undoes the
columns. Lines too long for that have a second factor: ``second_factor`` transforms along
``middle`` before and after. A grid without such factors is multiplied by its circulant matrix.

FFTs of powers of two run on blocks ``[LANES, 8]``: one lane is one thread, with eight complex
values in registers. A line of ``2**log`` values lies in ``2**(log - 3)`` neighbouring lanes,
value ``lane + 2**(log - 3) * register``. Each step is a DFT of 8 over the registers, a
multiplication by twiddles, and an exchange that swaps the next three bits of the lane with the
three bits of the register. For 64 values in 8 lanes::

                register 0  1 ..  7                       register 0  1 ..  7
        lane 0 |         0  8 .. 56 |    exchange   lane 0 |      0  1 ..  7 |
        lane 1 |         1  9 .. 57 |   --------->  lane 1 |      8  9 .. 15 |
          ..   |        ..          |                 ..   |     ..          |
        lane 7 |         7 15 .. 63 |   <---------  lane 7 |     56 57 .. 63 |

                lane bits:  l2 l1 l0   register bits:  r2 r1 r0
                after:      r2 r1 r0                   l2 l1 l0

The exchange is its own inverse. The inverse FFT undoes the steps in reverse order, so every value
returns to its own lane, and each lane stores where it loaded.

``REAL`` is the dtype of the arithmetic: float64 where a GPU is fast at it, since a wave of the band
is a single value in the middle of the transform and a rounding there is one of the whole result.
Loads and stores, tables included, keep the precision of the gradients.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields
from specgrad_kernels.backends.triton.fields import read_field

ROOT_OFFSETS = {64: 0, 512: 128, 32: 1152, 256: 1216, 2048: 1728}
"""Offset of each FFT length's twiddles among the coefficients; lengths of radix-8 steps alone
come first."""
_ROOTS = tl.constexpr(ROOT_OFFSETS)


@triton.jit
def load8(base_ptr, stride, mask, REAL: tl.constexpr = None):
    """Load eight values per lane, ``stride`` apart, as one ``[LANES, 8]`` block.

    One access instead of eight: the compiler's coalescing pass walks the kernel for each.
    """
    TYPE: tl.constexpr = base_ptr.dtype.element_ty if REAL is None else REAL
    ptrs = base_ptr[None, :] + (tl.arange(0, 8) * stride)[:, None]  # [8, LANES]
    return tl.permute(tl.load(ptrs, mask[None, :], 0.0).to(TYPE), (1, 0))  # [LANES, 8]


@triton.jit
def store8(base_ptr, stride, x, mask):
    """Store a ``[LANES, 8]`` block, the eight values of a lane ``stride`` apart."""
    ptrs = base_ptr[None, :] + (tl.arange(0, 8) * stride)[:, None]  # [8, LANES]
    tl.store(ptrs, tl.permute(x, (1, 0)), mask[None, :])


@triton.jit
def twiddle8(r, i, c, s, SIGN: tl.constexpr):
    """Multiply complex values by ``c + SIGN * i * s``."""
    return r * c - SIGN * i * s, i * c + SIGN * r * s


@triton.jit
def dft4(ar, ai, br, bi, cr, ci, dr, di, SIGN: tl.constexpr):
    """DFT of four points; ``SIGN`` is -1 forward and 1 inverse."""
    even_r, even_i, odd_r, odd_i = ar + cr, ai + ci, ar - cr, ai - ci
    sum_r, sum_i, diff_r, diff_i = br + dr, bi + di, br - dr, bi - di
    side_r, side_i = -SIGN * diff_i, SIGN * diff_r
    low = (even_r + sum_r, even_i + sum_i, odd_r + side_r, odd_i + side_i)
    high = (even_r - sum_r, even_i - sum_i, odd_r - side_r, odd_i - side_i)
    return low + high


@triton.jit
def join8(x, LANES: tl.constexpr):
    """Join eight ``[LANES]`` registers to ``[LANES, 8]``."""
    low = tl.join(tl.join(x[0], x[4]), tl.join(x[2], x[6]))  # [LANES, 2, 2]
    high = tl.join(tl.join(x[1], x[5]), tl.join(x[3], x[7]))  # [LANES, 2, 2]
    return tl.reshape(tl.join(low, high), [LANES, 8])


@triton.jit
def split8(x, LANES: tl.constexpr):
    """Split ``[LANES, 8]`` into eight ``[LANES]`` registers."""
    even, odd = tl.split(tl.reshape(x, [LANES, 2, 2, 2]))  # [LANES, 2, 2]
    x04, x26 = tl.split(even)  # [LANES, 2]
    x15, x37 = tl.split(odd)
    x0, x4 = tl.split(x04)  # [LANES]
    x2, x6 = tl.split(x26)
    x1, x5 = tl.split(x15)
    x3, x7 = tl.split(x37)
    return (x0, x1, x2, x3, x4, x5, x6, x7)


@triton.jit
def dft8(r, i, SIGN: tl.constexpr):
    """DFT of eight points over the registers of each lane, ``[LANES, 8]``."""
    LANES: tl.constexpr = r.shape[0]
    HALF: tl.constexpr = 0.7071067811865476
    r, i = split8(r, LANES), split8(i, LANES)
    a0, b0, a1, b1, a2, b2, a3, b3 = dft4(r[0], i[0], r[2], i[2], r[4], i[4], r[6], i[6], SIGN)
    c0, d0, c1, d1, c2, d2, c3, d3 = dft4(r[1], i[1], r[3], i[3], r[5], i[5], r[7], i[7], SIGN)
    c1, d1 = HALF * (c1 - SIGN * d1), HALF * (d1 + SIGN * c1)
    c2, d2 = -SIGN * d2, SIGN * c2
    c3, d3 = -HALF * (c3 + SIGN * d3), HALF * (SIGN * c3 - d3)
    real = (a0 + c0, a1 + c1, a2 + c2, a3 + c3, a0 - c0, a1 - c1, a2 - c2, a3 - c3)
    imaginary = (b0 + d0, b1 + d1, b2 + d2, b3 + d3, b0 - d0, b1 - d1, b2 - d2, b3 - d3)
    return join8(real, LANES), join8(imaginary, LANES)


@triton.jit
def dft4_twice(r, i, SIGN: tl.constexpr):
    """DFT of four points over the even registers, and one over the odd ones, ``[LANES, 8]``."""
    LANES: tl.constexpr = r.shape[0]
    r, i = split8(r, LANES), split8(i, LANES)
    a0, b0, a2, b2, a4, b4, a6, b6 = dft4(r[0], i[0], r[2], i[2], r[4], i[4], r[6], i[6], SIGN)
    a1, b1, a3, b3, a5, b5, a7, b7 = dft4(r[1], i[1], r[3], i[3], r[5], i[5], r[7], i[7], SIGN)
    real = join8((a0, a1, a2, a3, a4, a5, a6, a7), LANES)
    return real, join8((b0, b1, b2, b3, b4, b5, b6, b7), LANES)


@triton.jit
def exchange(r, i, BELOW: tl.constexpr, BITS: tl.constexpr):
    """Swap ``BITS`` bits of the lane, ``BELOW`` bits from its lowest, with as many upper bits of
    the register; its own inverse."""
    LANES: tl.constexpr = r.shape[0]
    NEAR: tl.constexpr = 1 << BELOW
    SIDE: tl.constexpr = 1 << BITS
    both = tl.join(r, i)  # [LANES, 8, 2]
    both = tl.reshape(both, [LANES // NEAR // SIDE, SIDE, NEAR, SIDE, 16 // SIDE])
    both = tl.reshape(tl.permute(both, (0, 3, 2, 1, 4)), [LANES, 8, 2])
    return tl.split(both)  # [LANES, 8] each


@triton.jit
def exchange_either(r, i, longer, SHORT: tl.constexpr, SIGN: tl.constexpr):
    """Exchange, and DFT over the registers, of lines of ``2**SHORT`` values or, where ``longer``,
    of ``2**(SHORT + 1)``; inverse (1) the other way round."""
    if SHORT == 5:
        # 32 values leave two bits for their second step, 64 values three
        if longer:
            if SIGN == 1:
                r, i = dft8(r, i, 1)
            r, i = exchange(r, i, 0, 3)
            if SIGN == -1:
                r, i = dft8(r, i, -1)
        else:
            if SIGN == 1:
                r, i = dft4_twice(r, i, 1)
            r, i = exchange(r, i, 0, 2)
            if SIGN == -1:
                r, i = dft4_twice(r, i, -1)
    else:
        if SIGN == 1:
            r, i = dft8(r, i, 1)
        if longer:
            r, i = exchange(r, i, SHORT - 5, 3)
        else:
            r, i = exchange(r, i, SHORT - 6, 3)
        if SIGN == -1:
            r, i = dft8(r, i, -1)
    return r, i


@triton.jit
def twiddle_by_roots(r, i, roots_ptr, lane, length_log, SIGN: tl.constexpr):
    """Multiply by the twiddles of an FFT step of ``2**length_log`` values: lane times register."""
    row = 1 << (length_log - 3)
    # the mask keeps the block from looking like a run: one lane stays one thread
    mask = lane >= 0  # [LANES]
    cosine_ptr = roots_ptr + tl.where(mask, lane & (row - 1), 0)  # [LANES]
    cosine = load8(cosine_ptr, row, mask)  # [LANES, 8]
    sine = load8(cosine_ptr + 8 * row, row, mask)
    return twiddle8(r, i, cosine, sine, SIGN)


@triton.jit
def radix_step(r, i, roots_ptr, lane, longer, SHORT: tl.constexpr, SIGN: tl.constexpr):
    """One step of the FFT of lines of ``2**SHORT`` values, or twice as many where ``longer``:
    forward (-1), or undone (1)."""
    if SIGN == 1:
        r, i = exchange_either(r, i, longer, SHORT, 1)
    roots_ptr += tl.where(longer, _ROOTS[2 << SHORT], _ROOTS[1 << SHORT])
    r, i = twiddle_by_roots(r, i, roots_ptr, lane, SHORT + longer.to(tl.int32), -SIGN)
    if SIGN == -1:
        r, i = exchange_either(r, i, longer, SHORT, -1)
    return r, i


@triton.jit
def first_step_2048(r, i, roots_ptr, lane, SIGN: tl.constexpr):
    """First step of the FFT of 2048 values, which leaves 256: forward (-1), or undone (1)."""
    if SIGN == 1:
        r, i = dft8(r, i, 1)
        r, i = exchange(r, i, 5, 3)
    r, i = twiddle_by_roots(r, i, roots_ptr + _ROOTS[2048], lane, 11, -SIGN)
    if SIGN == -1:
        r, i = exchange(r, i, 5, 3)
        r, i = dft8(r, i, -1)
    return r, i


@triton.jit
def line_fft(r, i, roots_ptr, lane, log, SIGN: tl.constexpr):
    """FFT of lines of ``2**log`` values, bins in the order of ``tables.bin_order`` (-1); or the
    unscaled inverse, every step undone (1). Lengths are 8, 32, 64, 256, 512 and, with 256 lanes,
    2048."""
    LANES: tl.constexpr = r.shape[0]
    if SIGN == -1:
        r, i = dft8(r, i, -1)
        if LANES >= 256:  # noqa: SIM102 - one is known to the compiler, the other is not
            if log == 11:
                r, i = first_step_2048(r, i, roots_ptr, lane, -1)
        if log >= 8:
            r, i = radix_step(r, i, roots_ptr, lane, log == 9, 8, -1)
        if log >= 5:
            r, i = radix_step(r, i, roots_ptr, lane, log % 3 == 0, 5, -1)
    else:
        if log >= 5:
            r, i = radix_step(r, i, roots_ptr, lane, log % 3 == 0, 5, 1)
        if log >= 8:
            r, i = radix_step(r, i, roots_ptr, lane, log == 9, 8, 1)
        if LANES >= 256:  # noqa: SIM102 - one is known to the compiler, the other is not
            if log == 11:
                r, i = first_step_2048(r, i, roots_ptr, lane, 1)
        r, i = dft8(r, i, 1)
    return r, i


@triton.jit
def _add_columns(r, i, base, ptrs, strides, mask, REAL: tl.constexpr, COUNT: tl.constexpr):
    """Add the products of the next ``COUNT`` columns; pointers advance by a column each."""
    grid_ptr, cosine_ptr, sine_ptr = ptrs  # [LANES] each
    column_stride, bins, register_stride = strides
    for _ in tl.static_range(COUNT):
        grid_ptr += column_stride
        cosine_ptr += bins
        sine_ptr += bins
        value = load8(grid_ptr, register_stride, mask, REAL) - base  # [LANES, 8]
        r += value * tl.load(cosine_ptr, mask, 0.0)[:, None]
        i += value * tl.load(sine_ptr, mask, 0.0)[:, None]
    return r, i, (grid_ptr, cosine_ptr, sine_ptr)


@triton.jit
def column_dft(ptrs, strides, columns, mask, LANES: tl.constexpr, REAL: tl.constexpr):
    """One bin of the DFT down the columns, ``[LANES, 8]``.

    ``ptrs``: grid, cosines and sines, ``[LANES]`` each. ``strides``: to the next column of the
    grid, to its factors, and from register to register.

    The first column is taken from the others before they are multiplied: what is common to all
    is then multiplied once, by a power of two, instead of added up with a rounding at each step.
    """
    i = tl.zeros([LANES, 8], REAL)
    base = load8(ptrs[0], strides[2], mask, REAL)  # [LANES, 8]
    r = i + base * tl.load(ptrs[1], mask, 0.0)[:, None]
    others = columns - 1
    for _ in range(others // 2):
        r, i, ptrs = _add_columns(r, i, base, ptrs, strides, mask, REAL, 2)
    for _ in range(others % 2):
        r, i, ptrs = _add_columns(r, i, base, ptrs, strides, mask, REAL, 1)
    return r, i


@triton.jit
def _circulant(grid_ptr, kernel_ptr, cell, cells, mask, LANES: tl.constexpr, REAL: tl.constexpr):
    """Multiply the grid by one row of its circulant matrix per lane, ``[LANES]``.

    Four partial sums: shorter ones lose less. The first cell is taken from all and multiplied
    once, by the sum of the row.
    """
    zero = tl.zeros([LANES], REAL)
    sums = [zero for _ in (0, 1, 2, 3)]
    base = tl.load(grid_ptr).to(REAL)
    common = base * tl.load(kernel_ptr + 2 * cells - 1)
    kernel_ptr += cell + cells - 1  # [LANES]
    quarters = cells // 4 * 4
    for start in range(0, quarters, 4):
        values = [tl.load(grid_ptr + start + k).to(REAL) - base for k in (0, 1, 2, 3)]
        sums = [
            sums[k] + values[k] * tl.load(kernel_ptr - start - k, mask, 0.0) for k in (0, 1, 2, 3)
        ]
    first = sums[0]
    for start in range(quarters, cells):
        value = tl.load(grid_ptr + start).to(REAL) - base
        first += value * tl.load(kernel_ptr - start, mask, 0.0)
    return (first + sums[1]) + (sums[2] + sums[3]) + common


@triton.jit
def filter_grid(
    programs_ptr, coefficients_ptr, workspace_ptr, REAL: tl.constexpr, LANES: tl.constexpr
):
    """FFT, gains and inverse FFT of the lines from ``FIRST`` on, ``8 * LANES`` values."""
    lane = tl.arange(0, LANES)  # [LANES], like all pointers and masks below
    first = read_field(programs_ptr, fields.FIRST)
    columns = read_field(programs_ptr, fields.COLUMNS)
    log = read_field(programs_ptr, fields.LOG_ROWS)
    log_middle = read_field(programs_ptr, fields.LOG_MIDDLE)
    grid_ptr = workspace_ptr + read_field(programs_ptr, fields.GRID)
    result_ptr = workspace_ptr + read_field(programs_ptr, fields.RESULT)
    matrix_ptr = coefficients_ptr + read_field(programs_ptr, fields.MATRIX)
    gains_ptr = coefficients_ptr + read_field(programs_ptr, fields.TWIDDLES) + lane
    if log == 0:
        cells = read_field(programs_ptr, fields.CELLS)
        cell = first + lane
        cell_mask = cell < cells
        total = _circulant(grid_ptr, matrix_ptr, cell, cells, cell_mask, LANES, REAL)
        tl.store(result_ptr + cell, total, cell_mask)
    else:
        row = 1 << log
        stride = row >> 3
        line = first + (lane >> (log - 3))
        offset = lane & (stride - 1)
        bins = columns // 2 + 1
        lines = bins << log_middle
        line_mask = line < lines
        twiddle_mask = tl.where(log_middle == 0, line_mask, False)
        gains = load8(gains_ptr, LANES, line_mask)  # [LANES, 8]
        # twiddles between columns and rows: of the lane, times those of the register
        lane_ptr = gains_ptr + 8 * LANES
        register_ptr = matrix_ptr + 2 * bins * columns + line
        cosine, sine = twiddle8(
            load8(register_ptr, bins, twiddle_mask, REAL),
            load8(register_ptr + 8 * bins, bins, twiddle_mask, REAL),
            tl.load(lane_ptr, twiddle_mask, 0.0)[:, None],
            tl.load(lane_ptr + LANES, twiddle_mask, 0.0)[:, None],
            1,
        )  # [LANES, 8] each
        real_ptr = workspace_ptr + read_field(programs_ptr, fields.LINES) + line * row + offset
        imaginary_ptr = real_ptr + lines * row
        if log_middle > 0:
            r = load8(real_ptr, stride, line_mask, REAL)  # [LANES, 8]
            i = load8(imaginary_ptr, stride, line_mask, REAL)
        else:
            cosine_ptr = matrix_ptr + line
            ptrs = (grid_ptr + offset, cosine_ptr, cosine_ptr + bins * columns)
            r, i = column_dft(ptrs, (row, bins, stride), columns, line_mask, LANES, REAL)
            r, i = twiddle8(r, i, cosine, sine, 1)
        r, i = line_fft(r, i, coefficients_ptr, lane, log, -1)
        r *= gains
        i *= gains
        r, i = line_fft(r, i, coefficients_ptr, lane, log, 1)
        # Every lane stores where it loaded: no other lane's values are lost.
        if log_middle > 0:
            store8(real_ptr, stride, r, line_mask)
            store8(imaginary_ptr, stride, i, line_mask)
        else:
            r, i = twiddle8(r, i, cosine, sine, -1)
            imaginary_mask = line_mask & (line > 0) & (2 * line < columns)
            imaginary_row = columns // 2 + line
            store8(result_ptr + line * row + offset, stride, r, line_mask)
            store8(result_ptr + imaginary_row * row + offset, stride, i, imaginary_mask)


@triton.jit
def second_factor(
    programs_ptr,
    coefficients_ptr,
    workspace_ptr,
    REAL: tl.constexpr,
    LANES: tl.constexpr,
    INVERSE: tl.constexpr,
):
    """FFT of 8 or 64 points along ``middle``, of one bin's line as ``[middle, rows]``.

    Forward, it reads the grid and the column DFT comes first; inverse, it writes what
    ``interpolate`` reads.
    """
    WIDE: tl.constexpr = LANES // 8
    lane = tl.arange(0, LANES)  # [LANES], like all pointers and masks below
    first = read_field(programs_ptr, fields.FIRST)
    bin = read_field(programs_ptr, fields.BIN)
    columns = read_field(programs_ptr, fields.COLUMNS)
    log = read_field(programs_ptr, fields.LOG_ROWS)
    log_middle = read_field(programs_ptr, fields.LOG_MIDDLE)
    bins = columns // 2 + 1
    row = 1 << log
    points = 1 << log_middle
    is_64 = log_middle > 3
    group = tl.where(is_64, lane // WIDE, 0)
    column = first + tl.where(is_64, lane % WIDE, lane)
    mask = column < row
    offsets = group * row + column
    stride = (points >> 3) * row
    lines_ptr = workspace_ptr + read_field(programs_ptr, fields.LINES)
    real_ptr = lines_ptr + bin * points * row + offsets
    imaginary_ptr = real_ptr + bins * points * row
    # twiddles: by point and bin, by column and bin, by point and column
    point_ptr = coefficients_ptr + read_field(programs_ptr, fields.TWIDDLES)
    column_ptr = point_ptr + 2 * bins * points
    both_ptr = column_ptr + 2 * bins * row
    point_ptr += bin * points + group
    column_ptr += bin * row + column
    both_ptr += offsets
    point_cosine = load8(point_ptr, points >> 3, mask)  # [LANES, 8]
    point_sine = load8(point_ptr + bins * points, points >> 3, mask)
    column_cosine = tl.load(column_ptr, mask, 0.0)[:, None]  # [LANES, 1]
    column_sine = tl.load(column_ptr + bins * row, mask, 0.0)[:, None]
    if INVERSE:
        r = load8(real_ptr, stride, mask, REAL)  # [LANES, 8]
        i = load8(imaginary_ptr, stride, mask, REAL)
        both_cosine = load8(both_ptr, stride, mask)
        both_sine = load8(both_ptr + points * row, stride, mask)
        r, i = twiddle8(r, i, both_cosine, both_sine, -1)
        r, i = twiddle8(r, i, column_cosine, column_sine, -1)
        r, i = dft8(r, i, 1)
        if is_64:
            r, i = exchange(r, i, 5, 3)
            r, i = twiddle_by_roots(r, i, coefficients_ptr + _ROOTS[64], group, 6, -1)
            r, i = dft8(r, i, 1)
        r, i = twiddle8(r, i, point_cosine, point_sine, -1)
        result_ptr = workspace_ptr + read_field(programs_ptr, fields.RESULT) + offsets
        imaginary_mask = tl.where((bin > 0) & (2 * bin < columns), mask, False)
        store8(result_ptr + bin * points * row, stride, r, mask)
        store8(result_ptr + (columns // 2 + bin) * points * row, stride, i, imaginary_mask)
    else:
        grid_ptr = workspace_ptr + read_field(programs_ptr, fields.GRID) + offsets
        cosine_ptr = coefficients_ptr + read_field(programs_ptr, fields.MATRIX) + bin + 0 * lane
        ptrs = (grid_ptr, cosine_ptr, cosine_ptr + bins * columns)
        r, i = column_dft(ptrs, (points * row, bins, stride), columns, mask, LANES, REAL)
        r, i = twiddle8(r, i, point_cosine, point_sine, 1)
        r, i = dft8(r, i, -1)
        if is_64:
            r, i = twiddle_by_roots(r, i, coefficients_ptr + _ROOTS[64], group, 6, 1)
            r, i = exchange(r, i, 5, 3)
            r, i = dft8(r, i, -1)
        both_cosine = load8(both_ptr, stride, mask)  # [LANES, 8]
        both_sine = load8(both_ptr + points * row, stride, mask)
        r, i = twiddle8(r, i, both_cosine, both_sine, 1)
        r, i = twiddle8(r, i, column_cosine, column_sine, 1)
        store8(real_ptr, stride, r, mask)
        store8(imaginary_ptr, stride, i, mask)
