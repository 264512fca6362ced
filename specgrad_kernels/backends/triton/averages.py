"""Kernels that subtract averages: means (``centralize``), and moving ones (``lap``, ``gaussian``).

Of moving averages, a tile is seen as lines of ``LINE`` samples; its smoothing is one matrix
product with the banded matrix of the weights. Tiles write in place, so what lies around each of
them is saved first: ``save_borders`` copies the ``radius`` samples on both sides of every tile
border, with the boundary rule applied, and ``subtract_smooth`` reads its neighbours there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields
from specgrad_kernels.backends.triton.fields import find_signal, number, offset_of, samples_at

COUNT, CIRCULAR, REFLECT = map(tl.constexpr, range(3))


@triton.jit
def _subtract_mean(
    signal,
    count,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """From ``count`` samples, the second time out of the cache."""
    address, layout = signal
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
    pointers, table, programs, ELEMENT: tl.constexpr, REAL: tl.constexpr, BLOCK: tl.constexpr
):
    """One signal, most often a group of a tensor's samples: one read of memory and one write."""
    count = number(programs, fields.LENGTH)
    address, layout = find_signal(pointers, table, programs, ELEMENT)
    plain = number(programs, fields.PLAIN) == 1
    if plain & (address % 16 == 0) & (count % 16 == 0):
        _subtract_mean((address, layout), count, ELEMENT, REAL, BLOCK, True)
    else:
        _subtract_mean((address, layout), count, ELEMENT, REAL, BLOCK, False)


@triton.jit
def extended(n, d, radius, BOUNDARY: tl.constexpr):
    """Index of the sample that stands at position ``n``, inside the signal or not."""
    if BOUNDARY == CIRCULAR:
        index = n % d
        index = tl.where(index < 0, index + d, index)
    elif BOUNDARY == REFLECT:
        mirrored = tl.where(n < 0, -n, n)
        mirrored = tl.where(mirrored >= d, 2 * (d - 1) - mirrored, mirrored)
        index = tl.where(radius < d, mirrored, n)
    else:
        index = n
    return tl.minimum(tl.maximum(index, 0), d - 1)


@triton.jit
def _place(n, layout, plain):
    """Elements from the signal's first sample to its sample ``n``."""
    if plain:  # noqa: SIM108 - a branch on the device
        offset = n.to(tl.int64)
    else:
        offset = offset_of(n, layout)
    return offset


@triton.jit
def save_borders(
    pointers,
    table,
    programs,
    borders,
    ELEMENT: tl.constexpr,
    BOUNDARY: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Copy the samples around the tile borders of one signal, ``SPAN`` of them."""
    first = number(programs, fields.FIRST)
    d = number(programs, fields.LENGTH)
    radius = number(programs, fields.RADIUS)
    tiles = number(programs, fields.TILES)
    address, layout = find_signal(pointers, table, programs, ELEMENT)
    samples = samples_at(address, ELEMENT, False)
    plain = number(programs, fields.PLAIN) == 1
    item = first + tl.arange(0, SPAN)
    border = item // (2 * radius)
    n = tl.minimum(border * TILE, d) - radius + item - border * 2 * radius
    wanted = border <= tiles
    if BOUNDARY == COUNT:
        wanted = wanted & (n >= 0) & (n < d)
    index = extended(n, d, radius, BOUNDARY)
    value = tl.load(samples + _place(index, layout, plain), mask=wanted, other=0.0)
    tl.store(borders + number(programs, fields.BORDERS) + item, value, wanted)


@triton.jit
def subtract_smooth(
    pointers,
    table,
    programs,
    coefficients,
    borders,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    PRECISION: tl.constexpr,
    BOUNDARY: tl.constexpr,
    LINES: tl.constexpr,
    LINE: tl.constexpr,
    DEPTH: tl.constexpr,
    SAVED: tl.constexpr,
):
    """Smooth one tile and subtract in place. Without ``SAVED`` the tile is the whole signal."""
    tile = number(programs, fields.FIRST)
    d = number(programs, fields.LENGTH)
    radius = number(programs, fields.RADIUS)
    address, layout = find_signal(pointers, table, programs, ELEMENT)
    samples = samples_at(address, ELEMENT, False)
    plain = number(programs, fields.PLAIN) == 1
    weights = coefficients + number(programs, fields.TAPS)
    first = tile * (LINES * LINE)
    last = tl.minimum(first + LINES * LINE, d)

    line = first + tl.arange(0, LINES) * LINE
    position = tl.arange(0, LINE)
    smooth = tl.zeros([LINES, LINE], REAL)
    for start in range(0, LINE + 2 * radius, DEPTH):
        step = start + tl.arange(0, DEPTH)
        n = (line - radius)[:, None] + step[None, :]
        needed = (line < last)[:, None] & (step < LINE + 2 * radius)[None, :]
        if SAVED:
            inside = (n >= first) & (n < last)
            value = tl.load(samples + _place(n, layout, plain), mask=needed & inside, other=0.0).to(
                REAL
            )
            outside = needed & ~inside & (n < last + radius)
            if BOUNDARY == COUNT:
                outside = outside & (n >= 0) & (n < d)
            around = borders + number(programs, fields.BORDERS)
            left = tile * 2 * radius + n - (first - radius)
            right = (tile + 1) * 2 * radius + n - (last - radius)
            place = tl.where(n < first, left, right)
            value += tl.load(around + place, mask=outside, other=0.0).to(REAL)
        else:
            if BOUNDARY == COUNT:
                needed = needed & (n >= 0) & (n < d)
            index = extended(n, d, radius, BOUNDARY)
            value = tl.load(samples + _place(index, layout, plain), mask=needed, other=0.0).to(REAL)
        tap = step[:, None] - position[None, :]
        weight = tl.load(weights + tap, mask=(tap >= 0) & (tap <= 2 * radius), other=0.0)
        smooth = tl.dot(value, weight, smooth, input_precision=PRECISION, out_dtype=REAL)

    n = line[:, None] + position[None, :]
    owned = n < last
    if BOUNDARY == COUNT:
        sums = weights + 2 * radius + 1
        above = tl.load(sums + tl.minimum(radius + d - 1 - n, 2 * radius) + 1, owned, 1.0)
        below = tl.load(sums + tl.maximum(radius - n, 0), owned, 0.0)
        smooth = smooth / (above - below)
    place = samples + _place(n, layout, plain)
    value = tl.load(place, mask=owned, other=0.0).to(REAL)
    # Another warp may still have to read what this one is about to overwrite.
    tl.debug_barrier()
    tl.store(place, (value - smooth).to(ELEMENT), mask=owned)
