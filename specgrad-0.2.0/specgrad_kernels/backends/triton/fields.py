"""Device tables: a row per Triton program, a row per memory layout, and device functions that
read them.

Host code addresses a program's fields by name, kernels by ``tl.constexpr`` index, the only kind of
global that kernels may read.
"""

from __future__ import annotations

import triton
import triton.language as tl

NAMES = (
    "ADDRESS",  # index into the table of gradient addresses
    "LAYOUT",  # row of the table of layouts
    "VECTOR",  # 1 where samples are contiguous and the kernel's cells have the signal's length
    "FIRST",  # first cell, line or sample of this program
    "CELLS",  # length of the coarse grid
    "HOP",  # samples of a cell
    "COLUMNS",  # the coarse grid is [columns, 2**log_middle, 2**log_rows]
    "LOG_MIDDLE",
    "LOG_ROWS",
    "BIN",  # column bin of this program
    "GRID",  # offsets into the workspace: the coarse grid, its split lines, the filtered lines
    "LINES",
    "RESULT",
    "TAPS",  # offsets into the coefficients: the window, the column DFT, twiddles and gains
    "MATRIX",
    "TWIDDLES",
)
"""Fields of a program's row."""
(ADDRESS, LAYOUT, VECTOR, FIRST, CELLS, HOP, COLUMNS, LOG_MIDDLE) = map(tl.constexpr, range(8))
(LOG_ROWS, BIN, GRID, LINES, RESULT, TAPS, MATRIX, TWIDDLES) = map(tl.constexpr, range(8, 16))
COUNT = tl.constexpr(len(NAMES))

(BASE, SIZE1, SIZE2, SIZE3, STRIDE0, STRIDE1, STRIDE2, STRIDE3) = map(tl.constexpr, range(8))
"""Fields of a layout's row: elements from a tensor's first to the signal's first; then sizes and
strides of up to four collapsed dimensions, outermost first."""
LAYOUT_COUNT = tl.constexpr(8)

# the same fields under the names of the kernels that subtract averages
LENGTH = CELLS  # samples of the signal
RADIUS = COLUMNS  # samples on each side that are averaged with one
BORDER = BIN  # number of the tile border around which samples are saved
BORDERS = GRID  # offset of its saved samples

if hasattr(tl, "debug_barrier"):

    @triton.jit
    def block_barrier():
        """Wait for all warps of this program."""
        tl.debug_barrier()

else:  # its announced name

    @triton.jit
    def block_barrier():
        """Wait for all warps of this program."""
        tl.barrier()


@triton.jit
def read_field(programs_ptr, FIELD: tl.constexpr):
    """Read one field of this program's row."""
    return tl.load(programs_ptr + tl.program_id(0) * COUNT + FIELD)


@triton.jit
def find_signal(addresses_ptr, layouts_ptr, programs_ptr, ELEMENT: tl.constexpr):
    """Address of the signal's first sample, in 64 bits since a stack may exceed 2**31 bytes, and a
    pointer to the signal's layout."""
    SIZE: tl.constexpr = ELEMENT.primitive_bitwidth // 8
    layout_ptr = layouts_ptr + read_field(programs_ptr, LAYOUT) * LAYOUT_COUNT
    base = tl.load(layout_ptr + BASE)
    return tl.load(addresses_ptr + read_field(programs_ptr, ADDRESS)) + base * SIZE, layout_ptr


@triton.jit
def pointer_to(address, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):
    """Cast an address to a pointer; ``ALIGNED`` promises 16 bytes, which makes accesses vectors."""
    samples_ptr = address.to(tl.pointer_type(ELEMENT))
    if ALIGNED:
        samples_ptr = tl.multiple_of(samples_ptr, 16)
    return samples_ptr


@triton.jit
def strided_offsets(n, layout_ptr):
    """Element offsets from a signal's first sample to its samples ``n``, in logical order."""
    size1 = tl.load(layout_ptr + SIZE1).to(tl.int32)
    size2 = tl.load(layout_ptr + SIZE2).to(tl.int32)
    size3 = tl.load(layout_ptr + SIZE3).to(tl.int32)
    upper3 = n // size3
    upper2 = upper3 // size2
    upper1 = upper2 // size1
    offsets = (n - upper3 * size3).to(tl.int64) * tl.load(layout_ptr + STRIDE3)
    offsets += (upper3 - upper2 * size2).to(tl.int64) * tl.load(layout_ptr + STRIDE2)
    offsets += (upper2 - upper1 * size1).to(tl.int64) * tl.load(layout_ptr + STRIDE1)
    offsets += upper1.to(tl.int64) * tl.load(layout_ptr + STRIDE0)
    return offsets
