"""Kernels of the band projection (method ``fft``).

The coarse grid of a signal is a matrix ``[columns, line]``, ``line = middle * rows``, filled
row by row. Its transform along the columns is kept in the workspace as real numbers: row
``k <= columns // 2`` holds the real part of bin ``k``, row ``columns // 2 + k`` the imaginary
part where there is one. Two further rows hold the imaginary parts of the first and last bin,
which are zero except between the two launches of ``transform_middle``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields
from specgrad_kernels.backends.triton.common import (
    field,
    multiply,
    offset_of,
    root_of_unity,
    samples_of,
)

TILE: tl.constexpr = tl.constexpr(16)


@triton.jit
def imaginary_row(bin, columns):
    """Workspace row of a column bin's imaginary part."""
    return tl.where((bin > 0) & (2 * bin < columns), columns // 2 + bin, columns + (bin > 0))


@triton.jit
def spread_columns(
    pointers,
    table,
    programs,
    coefficients,
    workspace,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    STRIDED: tl.constexpr,
    PRECISION: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Window the samples to 16 cells of every row, then transform down the columns."""
    program = tl.program_id(0)
    signal = tl.load(programs + 2 * program)
    first = tl.load(programs + 2 * program + 1)
    d = field(table, signal, fields.LENGTH)
    decimation = field(table, signal, fields.DECIMATION)
    width = field(table, signal, fields.WIDTH)
    columns = field(table, signal, fields.COLUMNS)
    line = field(table, signal, fields.MIDDLE) * field(table, signal, fields.ROWS)
    taps = coefficients + field(table, signal, fields.TAPS)
    matrix = coefficients + field(table, signal, fields.COLUMN_MATRIX)
    samples = samples_of(pointers, table, signal, ELEMENT)

    cell = tl.arange(0, TILE)
    bin_row = tl.arange(0, COLUMNS)
    reach = width * decimation
    extent = reach + (TILE - 1) * decimation
    wraps = (first * decimation < reach // 2) | (
        (first + TILE) * decimation + reach // 2 > line * decimation
    )
    spectrum = tl.zeros([COLUMNS, TILE], REAL)
    for start in range(0, columns, CHUNK):
        column = start + tl.arange(0, CHUNK)
        present = (column < columns)[:, None]
        origin = (column * line + first) * decimation - reach // 2
        cells = tl.zeros([CHUNK, TILE], REAL)
        for depth in range(0, extent, DEPTH):
            step = depth + tl.arange(0, DEPTH)
            n = origin[:, None] + step[None, :]
            wanted = present & (step < extent)[None, :]
            inside = (n >= 0) & (n < d)
            value = tl.load(
                samples + offset_of(n, table, signal, STRIDED), mask=wanted & inside, other=0.0
            ).to(REAL)
            if wraps:
                around = tl.where(n < 0, n + d, n - d)
                value += tl.load(
                    samples + offset_of(around, table, signal, STRIDED),
                    mask=wanted & (n < d + d) & ~inside,
                    other=0.0,
                ).to(REAL)
            tap = step[:, None] - cell[None, :] * decimation
            window = tl.load(taps + tap, mask=(tap >= 0) & (tap < reach), other=0.0)
            cells = multiply(value, window, cells, PRECISION, REAL)
        transform = tl.load(
            matrix + bin_row[:, None] * columns + column[None, :],
            mask=(bin_row < columns)[:, None] & (column < columns)[None, :],
            other=0.0,
        )
        spectrum = multiply(transform, cells, spectrum, PRECISION, REAL)

    target = first + cell
    tl.store(
        workspace + field(table, signal, fields.WORK) + bin_row[:, None] * line + target[None, :],
        spectrum,
        mask=(bin_row < columns)[:, None] & (target < line)[None, :],
    )


@triton.jit
def transform_middle(
    table,
    programs,
    coefficients,
    workspace,
    REAL: tl.constexpr,
    PRECISION: tl.constexpr,
    MIDDLE: tl.constexpr,
    INVERSE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Transform one bin's line, seen as ``[middle, rows]``, down 16 of its columns, in place.

    Forward, the twiddle between columns and line comes first and the imaginary part of a real
    row is known to be zero; inverse, it comes last and that part is dropped.
    """
    program = tl.program_id(0)
    signal = tl.load(programs + 3 * program)
    bin = tl.load(programs + 3 * program + 1)
    first = tl.load(programs + 3 * program + 2)
    columns = field(table, signal, fields.COLUMNS)
    middle = field(table, signal, fields.MIDDLE)
    rows = field(table, signal, fields.ROWS)
    line = middle * rows
    cosines = coefficients + field(table, signal, fields.MIDDLE_MATRIX)
    sines = cosines + middle * middle
    has_imaginary = (bin > 0) & (2 * bin < columns)
    work = workspace + field(table, signal, fields.WORK)
    real = work + bin * line
    imaginary = work + imaginary_row(bin, columns) * line

    index = tl.arange(0, MIDDLE)
    target = first + tl.arange(0, TILE)
    y_real = tl.zeros([MIDDLE, TILE], REAL)
    y_imaginary = tl.zeros([MIDDLE, TILE], REAL)
    for depth in range(0, middle, DEPTH):
        inner = depth + tl.arange(0, DEPTH)
        present = (inner < middle)[:, None] & (target < rows)[None, :]
        place = inner[:, None] * rows + target[None, :]
        x_real = tl.load(real + place, mask=present, other=0.0)
        if INVERSE:
            x_imaginary = tl.load(imaginary + place, mask=present, other=0.0)
        else:
            paired = tl.where(has_imaginary, present, False)
            y = tl.load(imaginary + place, mask=paired, other=0.0)
            turn = tl.where(present, bin * place, 0)
            turn_cosine, turn_sine = root_of_unity(turn, columns * line, REAL)
            x_imaginary = y * turn_cosine - x_real * turn_sine
            x_real = x_real * turn_cosine + y * turn_sine
        entry = index[:, None] * middle + inner[None, :]
        known = (index < middle)[:, None] & (inner < middle)[None, :]
        cosine = tl.load(cosines + entry, mask=known, other=0.0)
        y_real = multiply(cosine, x_real, y_real, PRECISION, REAL)
        y_imaginary = multiply(cosine, x_imaginary, y_imaginary, PRECISION, REAL)
        sine = tl.load(sines + entry, mask=known, other=0.0)
        if INVERSE:
            sine = -sine
        y_real = multiply(sine, x_imaginary, y_real, PRECISION, REAL)
        y_imaginary = multiply(-sine, x_real, y_imaginary, PRECISION, REAL)

    present = (index < middle)[:, None] & (target < rows)[None, :]
    place = index[:, None] * rows + target[None, :]
    # Another warp may still have to read what this one is about to overwrite.
    tl.debug_barrier()
    if INVERSE:
        turn = tl.where(present, bin * place, 0)
        turn_cosine, turn_sine = root_of_unity(turn, columns * line, REAL)
        paired = tl.where(has_imaginary, present, False)
        tl.store(real + place, y_real * turn_cosine - y_imaginary * turn_sine, mask=present)
        tl.store(imaginary + place, y_imaginary * turn_cosine + y_real * turn_sine, mask=paired)
    else:
        tl.store(real + place, y_real, mask=present)
        tl.store(imaginary + place, y_imaginary, mask=present)


@triton.jit
def solve_rows(
    table,
    programs,
    coefficients,
    workspace,
    REAL: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    BINS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """For 16 rows: transform to the bins of the band, multiply by the gains, and back."""
    program = tl.program_id(0)
    signal = tl.load(programs + 2 * program)
    first = tl.load(programs + 2 * program + 1)
    columns = field(table, signal, fields.COLUMNS)
    middle = field(table, signal, fields.MIDDLE)
    rows = field(table, signal, fields.ROWS)
    cutoff = field(table, signal, fields.CUTOFF)
    first_bin = field(table, signal, fields.FIRST_BIN)
    bins = field(table, signal, fields.BINS)
    gains = coefficients + field(table, signal, fields.GAINS)
    cosines = coefficients + field(table, signal, fields.ROW_MATRIX)
    sines = cosines + rows * rows
    line = middle * rows

    row = first + tl.arange(0, TILE)
    column_bin = row // middle
    middle_bin = row - column_bin * middle
    has_imaginary = (column_bin > 0) & (2 * column_bin < columns)
    exists = row < (columns // 2 + 1) * middle
    split = middle > 1
    paired = tl.where(split, exists, exists & has_imaginary)
    work = workspace + field(table, signal, fields.WORK) + middle_bin * rows
    real = work + column_bin * line
    imaginary = work + imaginary_row(column_bin, columns) * line
    factor = tl.where(split, middle_bin, column_bin)
    circle = tl.where(split, line, columns * line)

    # The mirror image of an inner column bin is not stored: it counts twice.
    weight = tl.where(has_imaginary, 2.0, 1.0).to(REAL)
    lowest = column_bin + columns * middle_bin
    index = tl.arange(0, ROWS)
    out_real = tl.zeros([TILE, ROWS], REAL)
    out_imaginary = tl.zeros([TILE, ROWS], REAL)
    for start in range(0, bins, BINS):
        step = start + tl.arange(0, BINS)
        bin = first_bin + step
        wrapped = bin % rows
        wrapped = tl.where(wrapped < 0, wrapped + rows, wrapped)
        z_real = tl.zeros([TILE, BINS], REAL)
        z_imaginary = tl.zeros([TILE, BINS], REAL)
        for depth in range(0, rows, DEPTH):
            inner = depth + tl.arange(0, DEPTH)
            stored = (inner < rows)[None, :]
            x_real = tl.load(real[:, None] + inner[None, :], exists[:, None] & stored, 0.0)
            x_imaginary = tl.load(
                imaginary[:, None] + inner[None, :], paired[:, None] & stored, 0.0
            )
            turn = tl.where(exists[:, None] & stored, factor[:, None] * inner[None, :], 0)
            turn_cosine, turn_sine = root_of_unity(turn, circle, REAL)
            t_real = x_real * turn_cosine + x_imaginary * turn_sine
            t_imaginary = x_imaginary * turn_cosine - x_real * turn_sine
            entry = inner[:, None] * rows + wrapped[None, :]
            known = (inner < rows)[:, None] & (step < bins)[None, :]
            cosine = tl.load(cosines + entry, mask=known, other=0.0)
            sine = tl.load(sines + entry, mask=known, other=0.0)
            z_real = multiply(t_real, cosine, z_real, PRECISION, REAL)
            z_real = multiply(t_imaginary, sine, z_real, PRECISION, REAL)
            z_imaginary = multiply(t_imaginary, cosine, z_imaginary, PRECISION, REAL)
            z_imaginary = multiply(-t_real, sine, z_imaginary, PRECISION, REAL)
        frequency = lowest[:, None] + bin[None, :] * (columns * middle)
        distance = tl.where(frequency < 0, -frequency, frequency)
        gain = tl.load(
            gains + distance, mask=(distance < cutoff) & (step < bins)[None, :], other=0.0
        )
        gain *= weight[:, None]
        z_real *= gain
        z_imaginary *= gain
        entry = wrapped[:, None] * rows + index[None, :]
        known = (step < bins)[:, None] & (index < rows)[None, :]
        cosine = tl.load(cosines + entry, mask=known, other=0.0)
        out_real = multiply(z_real, cosine, out_real, PRECISION, REAL)
        out_imaginary = multiply(z_imaginary, cosine, out_imaginary, PRECISION, REAL)
        sine = tl.load(sines + entry, mask=known, other=0.0)
        out_real = multiply(-z_imaginary, sine, out_real, PRECISION, REAL)
        out_imaginary = multiply(z_real, sine, out_imaginary, PRECISION, REAL)

    stored = (index < rows)[None, :]
    turn = tl.where(exists[:, None] & stored, factor[:, None] * index[None, :], 0)
    turn_cosine, turn_sine = root_of_unity(turn, circle, REAL)
    # Another warp may still have to read what this one is about to overwrite.
    tl.debug_barrier()
    tl.store(
        real[:, None] + index[None, :],
        out_real * turn_cosine - out_imaginary * turn_sine,
        mask=exists[:, None] & stored,
    )
    tl.store(
        imaginary[:, None] + index[None, :],
        out_imaginary * turn_cosine + out_real * turn_sine,
        mask=paired[:, None] & stored,
    )


@triton.jit
def subtract_columns(
    pointers,
    table,
    programs,
    coefficients,
    workspace,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    STRIDED: tl.constexpr,
    PRECISION: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Transform 16 columns and their neighbours back, interpolate, subtract in place.

    A neighbour beyond the line's end is the next row's cell, which in the transformed
    direction is the same column turned by one row.
    """
    program = tl.program_id(0)
    signal = tl.load(programs + 2 * program)
    first = tl.load(programs + 2 * program + 1)
    decimation = field(table, signal, fields.DECIMATION)
    width = field(table, signal, fields.WIDTH)
    columns = field(table, signal, fields.COLUMNS)
    line = field(table, signal, fields.MIDDLE) * field(table, signal, fields.ROWS)
    taps = coefficients + field(table, signal, fields.TAPS)
    matrix = coefficients + field(table, signal, fields.COLUMN_MATRIX)
    work = workspace + field(table, signal, fields.WORK)
    samples = samples_of(pointers, table, signal, ELEMENT)

    halo = tl.arange(0, 2 * TILE)
    wanted = halo < TILE - 1 + width
    cell = first - width // 2 + 1 + halo
    turns = tl.where(cell < 0, -((line - 1 - cell) // line), cell // line)
    place = cell - turns * line
    turns = turns % columns
    turns = tl.where(turns < 0, turns + columns, turns)
    column = tl.arange(0, COLUMNS)
    coarse = tl.zeros([COLUMNS, 2 * TILE], REAL)
    for start in range(0, columns, CHUNK):
        row = start + tl.arange(0, CHUNK)
        known = (row < columns)[:, None] & wanted[None, :]
        value = tl.load(work + row[:, None] * line + place[None, :], mask=known, other=0.0)
        # Masks keep most tiles from loading for the turn. A branch would do so too, but the
        # layout pass of Triton 3.6 fails on a product whose operand leaves a conditional.
        is_imaginary = row > columns // 2
        bin = tl.where(is_imaginary, row - columns // 2, row)
        has_partner = (bin > 0) & (2 * bin < columns)
        partner = tl.where(is_imaginary, bin, columns // 2 + bin)
        turned = known & (turns > 0)[None, :]
        paired = turned & has_partner[:, None]
        cosine = tl.load(matrix + bin[:, None] * columns + turns[None, :], mask=turned, other=1.0)
        sine = tl.load(
            matrix + (columns // 2 + bin)[:, None] * columns + turns[None, :],
            mask=paired,
            other=0.0,
        )
        other = tl.load(work + partner[:, None] * line + place[None, :], mask=paired, other=0.0)
        value = value * cosine + other * tl.where(is_imaginary[:, None], -sine, sine)
        transform = tl.load(
            matrix + row[None, :] * columns + column[:, None],
            mask=(row < columns)[None, :] & (column < columns)[:, None],
            other=0.0,
        )
        coarse = multiply(transform, value, coarse, PRECISION, REAL)

    owned = tl.minimum(line - first, TILE) * decimation
    origin = (column * line + first) * decimation
    for start in range(0, owned, SPAN):
        step = start + tl.arange(0, SPAN)
        tap = step[None, :] + (width - 1 - halo)[:, None] * decimation
        window = tl.load(
            taps + tap,
            mask=wanted[:, None] & (tap >= 0) & (tap < width * decimation),
            other=0.0,
        )
        low = multiply(coarse, window, tl.zeros([COLUMNS, SPAN], REAL), PRECISION, REAL)
        address = samples + offset_of(origin[:, None] + step[None, :], table, signal, STRIDED)
        mask = (column < columns)[:, None] & (step < owned)[None, :]
        value = tl.load(address, mask=mask, other=0.0).to(REAL)
        tl.store(address, (value - low).to(ELEMENT), mask=mask)
