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
LAYOUT_NAMES = ("BASE", "SIZE1", "SIZE2", "SIZE3", "STRIDE0", "STRIDE1", "STRIDE2", "STRIDE3")
"""Elements from a tensor's first to the signal's first; then sizes and strides of up to four
collapsed dimensions, outermost first."""

COUNT = tl.constexpr(len(NAMES))
SLOT = tl.constexpr(NAMES.index("SLOT"))
LAYOUT = tl.constexpr(NAMES.index("LAYOUT"))
PLAIN = tl.constexpr(NAMES.index("PLAIN"))
FIRST = tl.constexpr(NAMES.index("FIRST"))
CELLS = tl.constexpr(NAMES.index("CELLS"))
HOP = tl.constexpr(NAMES.index("HOP"))
COLUMNS = tl.constexpr(NAMES.index("COLUMNS"))
LOG_MIDDLE = tl.constexpr(NAMES.index("LOG_MIDDLE"))
LOG_ROWS = tl.constexpr(NAMES.index("LOG_ROWS"))
BIN = tl.constexpr(NAMES.index("BIN"))
GRID = tl.constexpr(NAMES.index("GRID"))
LINES = tl.constexpr(NAMES.index("LINES"))
BACK = tl.constexpr(NAMES.index("BACK"))
TAPS = tl.constexpr(NAMES.index("TAPS"))
MATRIX = tl.constexpr(NAMES.index("MATRIX"))
TURNS = tl.constexpr(NAMES.index("TURNS"))

LAYOUT_COUNT = tl.constexpr(len(LAYOUT_NAMES))
BASE = tl.constexpr(LAYOUT_NAMES.index("BASE"))
SIZE1 = tl.constexpr(LAYOUT_NAMES.index("SIZE1"))
SIZE2 = tl.constexpr(LAYOUT_NAMES.index("SIZE2"))
SIZE3 = tl.constexpr(LAYOUT_NAMES.index("SIZE3"))
STRIDE0 = tl.constexpr(LAYOUT_NAMES.index("STRIDE0"))
STRIDE1 = tl.constexpr(LAYOUT_NAMES.index("STRIDE1"))
STRIDE2 = tl.constexpr(LAYOUT_NAMES.index("STRIDE2"))
STRIDE3 = tl.constexpr(LAYOUT_NAMES.index("STRIDE3"))

LENGTH = CELLS  # of a detrended or centralised signal, whose cells are samples
RADIUS = COLUMNS  # samples on each side that are smoothed with one
TILES = BIN  # how many programs share a detrended signal
BORDERS = GRID  # where its saved samples begin
GROUP = COLUMNS  # samples of which the mean is taken
