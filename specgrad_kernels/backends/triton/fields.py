"""Columns of the device tables: a row per program, and a row per memory layout.

The numbers are plain integers for the host and ``tl.constexpr`` for the kernels, which may
read no other kind of global.
"""

from __future__ import annotations

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
TILES = BIN  # how many programs share a detrended signal
BORDERS = GRID  # where its saved samples begin
