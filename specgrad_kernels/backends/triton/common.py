"""Device functions that every kernel shares: a program's row, addresses, memory layouts."""

from __future__ import annotations

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields


@triton.jit
def number(programs, FIELD: tl.constexpr):
    """One number of this program's row."""
    return tl.load(programs + tl.program_id(0) * fields.COUNT + FIELD)


@triton.jit
def layout_of(table, programs):
    """This program's row of the table of layouts."""
    return table + number(programs, fields.LAYOUT) * fields.LAYOUT_COUNT


@triton.jit
def address_of(pointers, table, programs, ELEMENT: tl.constexpr):
    """Address of the signal's first sample, in 64 bits: a stack may be larger than 2**31."""
    SIZE: tl.constexpr = ELEMENT.primitive_bitwidth // 8
    base = tl.load(layout_of(table, programs) + fields.BASE)
    return tl.load(pointers + number(programs, fields.SLOT)) + base * SIZE


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
    size1 = tl.load(layout + fields.SIZE1).to(tl.int32)
    size2 = tl.load(layout + fields.SIZE2).to(tl.int32)
    size3 = tl.load(layout + fields.SIZE3).to(tl.int32)
    upper3 = n // size3
    upper2 = upper3 // size2
    upper1 = upper2 // size1
    offset = (n - upper3 * size3).to(tl.int64) * tl.load(layout + fields.STRIDE3)
    offset += (upper3 - upper2 * size2).to(tl.int64) * tl.load(layout + fields.STRIDE2)
    offset += (upper2 - upper1 * size1).to(tl.int64) * tl.load(layout + fields.STRIDE1)
    offset += upper1.to(tl.int64) * tl.load(layout + fields.STRIDE0)
    return offset
