"""Kernels between samples and the coarse grid: ``spread``, and ``interpolate`` with subtraction.

A cell is ``HOP`` samples, a window ``WIDTH`` cells. A block is ``[ROWS, HOP]``: each row stands
for four neighbouring cells, every vector of samples is loaded once and multiplied into the four,
with the window in registers and no shared memory. A signal whose cells are shorter than ``HOP``,
whose samples are strided or whose address is no multiple of 16 bytes goes the same way sample by
sample; every program decides for itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields
from specgrad_kernels.backends.triton.fields import (
    block_barrier,
    find_signal,
    pointer_to,
    read_field,
    strided_offsets,
)

CONTIGUOUS, WRAPPED, STRIDED = map(tl.constexpr, range(3))
"""Access to samples: in vectors, in vectors around the signal's ends, one by one by strides."""


class Cells(NamedTuple):
    """One signal as cells."""

    address: Any
    layout_ptr: Any
    count: Any  # cells of the signal
    hop: Any  # samples of a cell, at most HOP


@triton.jit
def load_window(taps_ptr, HOP: tl.constexpr, WIDTH: tl.constexpr):
    """The window's taps, ``[1, HOP]`` for each of its cells, 0 beyond its width."""
    sample = tl.arange(0, HOP)[None, :]  # [1, HOP]
    return [
        tl.load(taps_ptr + cell * HOP + sample) if cell < WIDTH else 0.0
        for cell in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    ]


@triton.jit
def _add(total, taps, value, CELL: tl.constexpr, WIDTH: tl.constexpr):
    if CELL >= 0 and CELL < WIDTH:
        total += taps[CELL] * value
    return total


@triton.jit
def _load_cells(
    samples_ptr,
    cells,
    cell,
    HOP: tl.constexpr,
    WIDTH: tl.constexpr,
    ACCESS: tl.constexpr,
    step,
):
    """Samples ``step`` cells after ``cell``, ``[ROWS, HOP]``; 0 where no window of the signal
    reaches."""
    sample = tl.arange(0, HOP)[None, :]  # [1, HOP]
    if ACCESS == CONTIGUOUS:
        value = tl.load(samples_ptr + (cell * HOP)[:, None] + sample + step * HOP)
    else:
        cell += step  # [ROWS]
        mask = (cell < cells.count + WIDTH // 2)[:, None]  # [ROWS, 1]
        if ACCESS == WRAPPED:
            near = tl.where(cell < 0, cell + cells.count, cell)
            near = tl.where(near >= cells.count, near - cells.count, near)
            sample_ptrs = samples_ptr + (near * HOP)[:, None] + sample  # [ROWS, HOP]
        else:
            near = cell % cells.count
            near = tl.where(near < 0, near + cells.count, near)
            mask = mask & (sample < cells.hop)
            offsets = strided_offsets((near * cells.hop)[:, None] + sample, cells.layout_ptr)
            sample_ptrs = samples_ptr + offsets  # [ROWS, HOP]
        value = tl.load(sample_ptrs, mask=mask, other=0.0)
    return value


@triton.jit
def _windowed(
    cells,
    first,
    taps_ptr,
    window,
    ELEMENT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    ACCESS: tl.constexpr,
):
    """Products of samples and window, four blocks ``[ROWS, HOP]``, not yet summed over a cell.

    From both ends to the middle, where the window is largest: small terms are added first.
    """
    LAST: tl.constexpr = WIDTH + 2
    HOP: tl.constexpr = window[0].shape[1]
    REAL: tl.constexpr = window[0].dtype
    samples_ptr = pointer_to(cells.address, ELEMENT, ACCESS != STRIDED)
    cell = first - WIDTH // 2 + 4 * tl.arange(0, ROWS)  # [ROWS]
    zero = tl.zeros([ROWS, HOP], REAL)
    sums = [zero for _ in (0, 1, 2, 3)]
    if ACCESS == STRIDED:
        # A loop that loads the window: beside the offsets there are no registers for it.
        for turn in range(LAST + 1):
            step = turn // 2 if turn % 2 == 0 else LAST - turn // 2
            value = _load_cells(samples_ptr, cells, cell, HOP, WIDTH, ACCESS, step).to(REAL)
            tap = step * HOP + tl.arange(0, HOP)[None, :]  # [1, HOP]
            near = [
                tl.load(taps_ptr + tap - k * HOP, (tap >= k * HOP) & (tap < (k + WIDTH) * HOP), 0.0)
                for k in (0, 1, 2, 3)
            ]
            sums = [sums[k] + near[k] * value for k in (0, 1, 2, 3)]
    else:
        for step in tl.static_range(LAST // 2 + 1):
            value = _load_cells(samples_ptr, cells, cell, HOP, WIDTH, ACCESS, step).to(REAL)
            sums = [_add(sums[k], window, value, step - k, WIDTH) for k in (0, 1, 2, 3)]
            if step < LAST // 2:
                far = LAST - step
                value = _load_cells(samples_ptr, cells, cell, HOP, WIDTH, ACCESS, far).to(REAL)
                sums = [_add(sums[k], window, value, LAST - step - k, WIDTH) for k in (0, 1, 2, 3)]
    return sums


@triton.jit
def spread(
    addresses_ptr,
    layouts_ptr,
    programs_ptr,
    coefficients_ptr,
    workspace_ptr,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    SUM: tl.constexpr,
    HOP: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Spread samples to the coarse grid: the windowed sum around each of ``4 * ROWS`` cells."""
    first = tl.multiple_of(read_field(programs_ptr, fields.FIRST), 4)
    count = read_field(programs_ptr, fields.CELLS)
    hop = read_field(programs_ptr, fields.HOP)
    grid_ptr = workspace_ptr + tl.multiple_of(read_field(programs_ptr, fields.GRID), 16)
    address, layout_ptr = find_signal(addresses_ptr, layouts_ptr, programs_ptr, ELEMENT)
    taps_ptr = coefficients_ptr + tl.multiple_of(read_field(programs_ptr, fields.TAPS), 16)
    window = load_window(taps_ptr, HOP, WIDTH)
    vector = (read_field(programs_ptr, fields.VECTOR) == 1) & (address % 16 == 0)
    cells = Cells(address, layout_ptr, count, hop)
    if vector & (first >= WIDTH // 2) & (first + 4 * ROWS + WIDTH // 2 <= count):
        sums = _windowed(cells, first, taps_ptr, window, ELEMENT, WIDTH, ROWS, CONTIGUOUS)
    elif vector:
        sums = _windowed(cells, first, taps_ptr, window, ELEMENT, WIDTH, ROWS, WRAPPED)
    else:
        sums = _windowed(cells, first, taps_ptr, window, ELEMENT, WIDTH, ROWS, STRIDED)
    # A rounding of these sums is one of the whole cell.
    totals = [tl.sum(sums[k].to(SUM), 1).to(REAL) for k in (0, 1, 2, 3)]  # [ROWS] each
    even = tl.join(totals[0], totals[2])  # [ROWS, 2]
    odd = tl.join(totals[1], totals[3])
    cell = first + tl.arange(0, 4 * ROWS)  # [4 * ROWS]
    tl.store(grid_ptr + cell, tl.reshape(tl.join(even, odd), [4 * ROWS]), mask=cell < count)


@triton.jit
def _cell_pointers(cells, cell, ELEMENT: tl.constexpr, HOP: tl.constexpr, VECTOR: tl.constexpr):
    """Pointers to the samples of some cells, ``[ROWS, HOP]``, and the mask of the signal's own."""
    samples_ptr = pointer_to(cells.address, ELEMENT, VECTOR)
    sample = tl.arange(0, HOP)[None, :]  # [1, HOP]
    mask = ((cell >= 0) & (cell < cells.count))[:, None]  # [ROWS, 1]
    if VECTOR:
        sample_ptrs = samples_ptr + (cell * HOP)[:, None] + sample
    else:
        mask = mask & (sample < cells.hop)
        offsets = strided_offsets((cell * cells.hop)[:, None] + sample, cells.layout_ptr)
        sample_ptrs = samples_ptr + offsets
    return sample_ptrs, mask


@triton.jit
def _load_four(
    cells,
    cell,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    HOP: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Load four neighbouring cells a row, ``[ROWS, HOP]`` each."""
    found = [_cell_pointers(cells, cell + k, ELEMENT, HOP, VECTOR) for k in (0, 1, 2, 3)]
    return [tl.load(found[k][0], mask=found[k][1], other=0.0).to(REAL) for k in (0, 1, 2, 3)]


@triton.jit
def _store_four(
    values, cells, cell, ELEMENT: tl.constexpr, HOP: tl.constexpr, VECTOR: tl.constexpr
):
    for k in tl.static_range(4):
        sample_ptrs, mask = _cell_pointers(cells, cell + k, ELEMENT, HOP, VECTOR)
        tl.store(sample_ptrs, values[k].to(ELEMENT), mask=mask)


@triton.jit
def _subtract_rows(total, row_ptrs, matrix_ptrs, row, columns, COUNT: tl.constexpr):
    """Subtract the next ``COUNT`` rows times their factors; pointers advance by a row each."""
    for _ in tl.static_range(COUNT):
        total -= tl.load(row_ptrs) * tl.load(matrix_ptrs)
        row_ptrs += row
        matrix_ptrs += columns
    return total, row_ptrs, matrix_ptrs


@triton.jit
def _negative_coarse(
    result_ptr, matrix_ptr, cell, log, columns, REAL: tl.constexpr, CELLS: tl.constexpr
):
    """The coarse grid at ``cell``, ``[CELLS]``, with its sign changed: the inverse DFT down the
    columns.

    Nine rows, which most grids have, are loaded together and waited for once; others in threes.
    """
    column = cell >> log  # [CELLS]
    row_ptrs = result_ptr + (cell - (column << log))
    matrix_ptrs = matrix_ptr + column
    row = 1 << log
    total = tl.zeros([CELLS], REAL)
    if columns == 9:
        total, row_ptrs, matrix_ptrs = _subtract_rows(total, row_ptrs, matrix_ptrs, row, 9, 9)
    else:
        for _ in range(columns // 3):
            total, row_ptrs, matrix_ptrs = _subtract_rows(
                total, row_ptrs, matrix_ptrs, row, columns, 3
            )
        for _ in range(columns % 3):
            total, row_ptrs, matrix_ptrs = _subtract_rows(
                total, row_ptrs, matrix_ptrs, row, columns, 1
            )
    return total


@triton.jit
def interpolate(
    addresses_ptr,
    layouts_ptr,
    programs_ptr,
    coefficients_ptr,
    workspace_ptr,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    HOP: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Interpolate the coarse grid by the window and subtract it from ``4 * ROWS - WIDTH`` cells."""
    CELLS: tl.constexpr = 4 * ROWS
    HALF: tl.constexpr = WIDTH // 2
    first = tl.multiple_of(read_field(programs_ptr, fields.FIRST), 4)
    count = read_field(programs_ptr, fields.CELLS)
    hop = read_field(programs_ptr, fields.HOP)
    columns = read_field(programs_ptr, fields.COLUMNS)
    log = read_field(programs_ptr, fields.LOG_ROWS) + read_field(programs_ptr, fields.LOG_MIDDLE)
    result_ptr = workspace_ptr + tl.multiple_of(read_field(programs_ptr, fields.RESULT), 16)
    scratch_ptr = workspace_ptr + tl.multiple_of(read_field(programs_ptr, fields.GRID), 16)
    taps_ptr = coefficients_ptr + tl.multiple_of(read_field(programs_ptr, fields.TAPS), 16)
    matrix_ptr = coefficients_ptr + tl.multiple_of(read_field(programs_ptr, fields.MATRIX), 16)
    address, layout_ptr = find_signal(addresses_ptr, layouts_ptr, programs_ptr, ELEMENT)
    vector = (read_field(programs_ptr, fields.VECTOR) == 1) & (address % 16 == 0)

    cells = Cells(address, layout_ptr, count, hop)
    row = tl.arange(0, ROWS)  # [ROWS]
    cell = tl.where(4 * row < CELLS - WIDTH, first + 4 * row, count)  # [ROWS]
    if vector:
        x = _load_four(cells, cell, ELEMENT, REAL, HOP, True)
    else:
        x = _load_four(cells, cell, ELEMENT, REAL, HOP, False)

    index = tl.arange(0, CELLS)  # [CELLS]
    near = first - WIDTH // 2 + 1 + index
    near = tl.where(near < 0, near + count, near)
    near = tl.where(near >= count, near - count, near)
    # A short grid may be passed more than once; only what is near its cells is used.
    near = tl.where((near < 0) | (near >= count), 0, near)
    coarse = _negative_coarse(result_ptr, matrix_ptr, near, log, columns, REAL, CELLS)
    # Offsets that do not look like a run are stored from the lanes that have them: a vector store
    # would exchange values between lanes first, for every row of the sum.
    tl.store(scratch_ptr + tl.where(near >= 0, index, 0), coarse)
    # The cells were stored by some warps and are read by all.
    block_barrier()

    window = load_window(taps_ptr, HOP, WIDTH)
    coarse_ptrs = scratch_ptr + 4 * row  # [ROWS]
    coarse = [
        tl.load(coarse_ptrs + step, mask=4 * row + step < CELLS, other=0.0)[:, None]  # [ROWS, 1]
        if step < WIDTH + 3
        else 0.0
        for step in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18)
    ]
    # The largest taps first: what a wave of the band leaves is then small, and so is its rounding.
    for away in tl.static_range(HALF):
        x = [x[k] + window[HALF - 1 - away] * coarse[HALF + away + k] for k in (0, 1, 2, 3)]
        x = [x[k] + window[HALF + away] * coarse[HALF - 1 - away + k] for k in (0, 1, 2, 3)]
    if vector:
        _store_four(x, cells, cell, ELEMENT, HOP, True)
    else:
        _store_four(x, cells, cell, ELEMENT, HOP, False)
