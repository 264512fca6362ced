"""Columns of the device table: one row of integers per signal.

The numbers are plain integers for the host and ``tl.constexpr`` for the kernels, which may
read no other kind of global.
"""

from __future__ import annotations

import triton.language as tl

NAMES = (
    "SLOT",  # index into the pointer table
    "BASE",  # elements from the tensor's first to the signal's first
    "LENGTH",
    "SIZE1",  # sizes and strides of up to four collapsed dimensions, outermost first
    "SIZE2",
    "SIZE3",
    "STRIDE0",
    "STRIDE1",
    "STRIDE2",
    "STRIDE3",
    "CUTOFF",
    "WORK",  # first element in the workspace
    "DECIMATION",
    "WIDTH",
    "COLUMNS",
    "MIDDLE",
    "ROWS",
    "TAPS",  # first coefficients of the window, gains and matrices
    "GAINS",
    "COLUMN_MATRIX",
    "MIDDLE_MATRIX",
    "ROW_MATRIX",
    "FIRST_BIN",  # lowest frequency index along a row, and how many
    "BINS",
    "RADIUS",
    "TILES",
)

COUNT = tl.constexpr(len(NAMES))
SLOT = tl.constexpr(NAMES.index("SLOT"))
BASE = tl.constexpr(NAMES.index("BASE"))
LENGTH = tl.constexpr(NAMES.index("LENGTH"))
SIZE1 = tl.constexpr(NAMES.index("SIZE1"))
SIZE2 = tl.constexpr(NAMES.index("SIZE2"))
SIZE3 = tl.constexpr(NAMES.index("SIZE3"))
STRIDE0 = tl.constexpr(NAMES.index("STRIDE0"))
STRIDE1 = tl.constexpr(NAMES.index("STRIDE1"))
STRIDE2 = tl.constexpr(NAMES.index("STRIDE2"))
STRIDE3 = tl.constexpr(NAMES.index("STRIDE3"))
CUTOFF = tl.constexpr(NAMES.index("CUTOFF"))
WORK = tl.constexpr(NAMES.index("WORK"))
DECIMATION = tl.constexpr(NAMES.index("DECIMATION"))
WIDTH = tl.constexpr(NAMES.index("WIDTH"))
COLUMNS = tl.constexpr(NAMES.index("COLUMNS"))
MIDDLE = tl.constexpr(NAMES.index("MIDDLE"))
ROWS = tl.constexpr(NAMES.index("ROWS"))
TAPS = tl.constexpr(NAMES.index("TAPS"))
GAINS = tl.constexpr(NAMES.index("GAINS"))
COLUMN_MATRIX = tl.constexpr(NAMES.index("COLUMN_MATRIX"))
MIDDLE_MATRIX = tl.constexpr(NAMES.index("MIDDLE_MATRIX"))
ROW_MATRIX = tl.constexpr(NAMES.index("ROW_MATRIX"))
FIRST_BIN = tl.constexpr(NAMES.index("FIRST_BIN"))
BINS = tl.constexpr(NAMES.index("BINS"))
RADIUS = tl.constexpr(NAMES.index("RADIUS"))
TILES = tl.constexpr(NAMES.index("TILES"))
