"""Kernel that subtracts means: ``centralize``, one read of memory and one write."""

from __future__ import annotations

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields
from specgrad_kernels.backends.triton.common import (
    address_of,
    layout_of,
    number,
    offset_of,
    samples_at,
)


@triton.jit
def _subtract(
    address,
    layout,
    count,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """From ``count`` samples, the second time out of the cache."""
    samples = samples_at(address, ELEMENT, WIDE)
    block = tl.arange(0, BLOCK)
    if WIDE:
        count = count // 16 * 16  # which it is: this tells the compiler
    total = tl.zeros([BLOCK], REAL)
    for start in range(0, count, BLOCK):
        n = start + block
        place = samples + n if WIDE else samples + offset_of(n, layout)
        total += tl.load(place, mask=start + block < count, other=0.0).to(REAL)
    # The sum waits for every warp's loads: none of them is overtaken by a store.
    mean = tl.sum(total, 0) / count
    for start in range(0, count, BLOCK):
        n = start + block
        place = samples + n if WIDE else samples + offset_of(n, layout)
        value = tl.load(place, mask=start + block < count, other=0.0).to(REAL)
        tl.store(place, (value - mean).to(ELEMENT), mask=start + block < count)


@triton.jit
def subtract_means(
    pointers,
    table,
    programs,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One signal, most often a group of a tensor's samples."""
    count = number(programs, fields.LENGTH)
    layout = layout_of(table, programs)
    address = address_of(pointers, table, programs, ELEMENT)
    plain = number(programs, fields.PLAIN) == 1
    if plain & (address % 16 == 0) & (count % 16 == 0):
        _subtract(address, layout, count, ELEMENT, REAL, BLOCK, True)
    else:
        _subtract(address, layout, count, ELEMENT, REAL, BLOCK, False)
