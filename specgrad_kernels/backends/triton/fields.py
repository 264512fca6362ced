"""Columns of the device tables, a row per program and a row per memory layout, and how kernels
read them.

Host code knows a program's columns by their names, kernels by numbers: ``tl.constexpr``, as they
may read no other kind of global.
"""

from __future__ import annotations

import triton
import triton.language as tl

NAMES = (
    "SLOT",  # index into the table of addresses
    "LAYOUT",  # row of the table of layouts
    "PLAIN",  # 1 where the samples are one run in memory and the kernel's cells are the signal's
    "FIRST",  # first cell, line or sample of this program
    "CELLS",  # length of the coarse grid
    "HOP",  # samples of a cell
    "COLUMNS",  # the coarse grid is [columns, 2**log_middle, 2**log_rows]
    "LOG_MIDDLE",
    "LOG_ROWS",
    "BIN",  # column bin of this program
    "GRID",  # places in the workspace: the coarse grid, its transform, what comes back
    "LINES",
    "BACK",
    "TAPS",  # places among the coefficients: the window, the column transform, turns and gains
    "MATRIX",
    "TURNS",
)
"""A program's row."""
(SLOT, LAYOUT, PLAIN, FIRST, CELLS, HOP, COLUMNS, LOG_MIDDLE) = map(tl.constexpr, range(8))
(LOG_ROWS, BIN, GRID, LINES, BACK, TAPS, MATRIX, TURNS) = map(tl.constexpr, range(8, 16))
COUNT = tl.constexpr(len(NAMES))

(BASE, SIZE1, SIZE2, SIZE3, STRIDE0, STRIDE1, STRIDE2, STRIDE3) = map(tl.constexpr, range(8))
"""A layout's row: elements from a tensor's first to the signal's first; then sizes and strides of
up to four collapsed dimensions, outermost first."""
LAYOUT_COUNT = tl.constexpr(8)

LENGTH = CELLS  # of a signal from which averages are subtracted: its cells are samples
RADIUS = COLUMNS  # samples on each side that are smoothed with one
BORDER = BIN  # number of the tile border around which samples are saved
BORDERS = GRID  # where its saved samples begin


@triton.jit
def number(programs, FIELD: tl.constexpr):
    """One number of this program's row."""
    return tl.load(programs + tl.program_id(0) * COUNT + FIELD)


@triton.jit
def find_signal(pointers, table, programs, ELEMENT: tl.constexpr):
    """Address of the signal's first sample, in 64 bits: a stack may be larger than 2**31; and the
    signal's row of the table of layouts."""
    SIZE: tl.constexpr = ELEMENT.primitive_bitwidth // 8
    layout = table + number(programs, LAYOUT) * LAYOUT_COUNT
    base = tl.load(layout + BASE)
    return tl.load(pointers + number(programs, SLOT)) + base * SIZE, layout


@triton.jit
def samples_at(address, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):
    """The address as a pointer; ``ALIGNED`` promises 16 bytes, and then accesses are wide."""
    samples = address.to(tl.pointer_type(ELEMENT))
    if ALIGNED:
        samples = tl.multiple_of(samples, 16)
    return samples


@triton.jit
def offset_of(n, layout):
    """Elements from a signal's first sample to its sample ``n``, in logical order."""
    size1 = tl.load(layout + SIZE1).to(tl.int32)
    size2 = tl.load(layout + SIZE2).to(tl.int32)
    size3 = tl.load(layout + SIZE3).to(tl.int32)
    upper3 = n // size3
    upper2 = upper3 // size2
    upper1 = upper2 // size1
    offset = (n - upper3 * size3).to(tl.int64) * tl.load(layout + STRIDE3)
    offset += (upper3 - upper2 * size2).to(tl.int64) * tl.load(layout + STRIDE2)
    offset += (upper2 - upper1 * size1).to(tl.int64) * tl.load(layout + STRIDE1)
    offset += upper1.to(tl.int64) * tl.load(layout + STRIDE0)
    return offset
