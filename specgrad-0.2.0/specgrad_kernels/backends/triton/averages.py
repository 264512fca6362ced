"""Kernels that subtract averages: means (``centralize``), and moving ones (``lap``, ``gaussian``).

Of moving averages, a block is ``[rows, RUN]``: a row is a run of neighbouring samples, every run
that is loaded serves all sums of the row, with weights that all lanes share. Runs that lie in all
windows of a moving average of equal weights are added up once. Tiles write in place, so what lies
around each of them is saved first: ``save_borders`` copies the samples on both sides of every tile
border, with the boundary rule applied, and ``subtract_smooth`` reads its neighbours there. A signal
that fits in one tile is left to ``subtract_smooth`` alone, which saves what it needs itself.
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
from specgrad_kernels.backends.triton.grid_fft import join8, split8

COUNT, CIRCULAR, REFLECT = map(tl.constexpr, range(3))


class Smoothed(NamedTuple):
    """One signal from which a moving average is subtracted."""

    address: Any
    layout_ptr: Any
    length: Any
    radius: Any
    borders_ptr: Any  # its saved samples
    vector: Any  # accessed in whole vectors


class Tile(NamedTuple):
    """One tile of such a signal; ``RUN`` samples a row."""

    samples_ptr: Any
    layout_ptr: Any
    weights_ptr: Any  # of the middle weight
    before_ptr: Any  # saved samples before the tile, indexed like the signal
    behind_ptr: Any  # those behind it
    row: Any  # [rows, 1], first sample of each row
    run: Any  # [1, RUN]
    first: Any
    last: Any
    radius: Any


@triton.jit
def _subtract_mean(
    address,
    layout_ptr,
    count,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Subtract the mean of ``count`` samples, which are read a second time out of the cache."""
    samples_ptr = pointer_to(address, ELEMENT, VECTOR)
    block = tl.arange(0, BLOCK)  # [BLOCK]
    if VECTOR:
        count = count // 16 * 16  # which it is: this tells the compiler
    total = tl.zeros([BLOCK], REAL)
    for start in range(0, count, BLOCK):
        n = start + block
        offsets = n if VECTOR else strided_offsets(n, layout_ptr)
        total += tl.load(samples_ptr + offsets, mask=start + block < count, other=0.0).to(REAL)
    # The sum waits for every warp's loads: none of them is overtaken by a store.
    mean = tl.sum(total, 0) / count
    for start in range(0, count, BLOCK):
        n = start + block
        sample_ptrs = samples_ptr + (n if VECTOR else strided_offsets(n, layout_ptr))
        value = tl.load(sample_ptrs, mask=start + block < count, other=0.0).to(REAL)
        tl.store(sample_ptrs, (value - mean).to(ELEMENT), mask=start + block < count)


@triton.jit
def subtract_means(
    addresses_ptr,
    layouts_ptr,
    programs_ptr,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Subtract the mean of one signal, most often a group of a tensor's samples."""
    count = read_field(programs_ptr, fields.LENGTH)
    address, layout_ptr = find_signal(addresses_ptr, layouts_ptr, programs_ptr, ELEMENT)
    vector = read_field(programs_ptr, fields.VECTOR) == 1
    if vector & (address % 16 == 0) & (count % 16 == 0):
        _subtract_mean(address, layout_ptr, count, ELEMENT, REAL, BLOCK, True)
    else:
        _subtract_mean(address, layout_ptr, count, ELEMENT, REAL, BLOCK, False)


@triton.jit
def extended(n, d, radius, BOUNDARY: tl.constexpr):
    """Index of the sample at position ``n``, by the boundary rule outside the signal."""
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
def reach_of(radius):
    """Samples that are saved on each side of a border: whole vectors of every dtype."""
    return (radius + 15) // 16 * 16


@triton.jit
def _find_smoothed(addresses_ptr, layouts_ptr, programs_ptr, borders_ptr):
    """The signal of this program."""
    d = read_field(programs_ptr, fields.LENGTH)
    ELEMENT: tl.constexpr = borders_ptr.dtype.element_ty
    address, layout_ptr = find_signal(addresses_ptr, layouts_ptr, programs_ptr, ELEMENT)
    borders_ptr += tl.multiple_of(read_field(programs_ptr, fields.BORDERS), 16)
    vector = (read_field(programs_ptr, fields.VECTOR) == 1) & (address % 16 == 0) & (d % 16 == 0)
    radius = read_field(programs_ptr, fields.RADIUS)
    return Smoothed(address, layout_ptr, d, radius, borders_ptr, vector)


@triton.jit
def _save(signal, border, row, run, BOUNDARY: tl.constexpr, TILE: tl.constexpr):
    """Copy some runs of the samples around one border, ``[rows, RUN]``."""
    d, radius, borders_ptr = signal.length, signal.radius, signal.borders_ptr
    ELEMENT: tl.constexpr = borders_ptr.dtype.element_ty
    reach = reach_of(radius)
    near = tl.minimum(border * TILE, d) - reach
    row_mask = row < 2 * reach  # [rows, 1]
    if signal.vector & (near >= 0) & (near + 2 * reach <= d):
        near = near // 16 * 16  # which it is: this tells the compiler
        samples_ptr = pointer_to(signal.address, ELEMENT, True)
        value = tl.load(samples_ptr + near + (row + run), row_mask, 0.0)
    else:
        n = near + row + run  # [rows, RUN]
        mask = row_mask
        if BOUNDARY == COUNT:
            mask = mask & (n >= 0) & (n < d)
        offsets = strided_offsets(extended(n, d, radius, BOUNDARY), signal.layout_ptr)
        value = tl.load(pointer_to(signal.address, ELEMENT, False) + offsets, mask, 0.0)
    tl.store(borders_ptr + border * 2 * reach + (row + run), value, row_mask)


@triton.jit
def save_borders(
    addresses_ptr,
    layouts_ptr,
    programs_ptr,
    borders_ptr,
    BOUNDARY: tl.constexpr,
    TILE: tl.constexpr,
    RUN: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Copy ``SPAN`` of the samples around one tile border."""
    signal = _find_smoothed(addresses_ptr, layouts_ptr, programs_ptr, borders_ptr)
    start = tl.multiple_of(read_field(programs_ptr, fields.FIRST), 16)
    row = start + RUN * tl.arange(0, SPAN // RUN)[:, None]  # [rows, 1]
    border = read_field(programs_ptr, fields.BORDER)
    _save(signal, border, row, tl.arange(0, RUN)[None, :], BOUNDARY, TILE)


@triton.jit
def _split(x, RUN: tl.constexpr):
    """Split ``[rows, RUN]`` into ``RUN`` blocks ``[rows]``."""
    if RUN == 8:
        parts = split8(x, x.shape[0])
    else:
        even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2]))  # [rows, 2]
        x0, x2 = tl.split(even)  # [rows]
        x1, x3 = tl.split(odd)
        parts = (x0, x1, x2, x3)
    return parts


@triton.jit
def _join(x, RUN: tl.constexpr):
    """Join ``RUN`` blocks ``[rows]`` to ``[rows, RUN]``."""
    if RUN == 8:
        runs = join8(x, x[0].shape[0])
    else:
        runs = tl.join(tl.join(x[0], x[2]), tl.join(x[1], x[3]))  # [rows, 2, 2]
        runs = tl.reshape(runs, [x[0].shape[0], 4])
    return runs


@triton.jit
def _load_runs(tile, step, VECTOR: tl.constexpr, AHEAD: tl.constexpr):
    """Load the runs ``step`` samples after each row's own (``AHEAD``) or before, ``[rows, RUN]``;
    saved ones where these are beyond the tile's border."""
    n = tile.row + step + tile.run  # [rows, RUN]
    saved_ptr = tile.behind_ptr if AHEAD else tile.before_ptr
    mask = tile.row < tile.last  # [rows, 1]
    if VECTOR:
        inside = tile.row + step < tile.last if AHEAD else tile.row + step >= tile.first
        sample_ptrs = tl.where(inside, tile.samples_ptr, saved_ptr)
        sample_ptrs = tl.multiple_of(sample_ptrs, (16, 16)) + n
    else:
        inside = n < tile.last if AHEAD else n >= tile.first
        own_ptrs = tile.samples_ptr + strided_offsets(n, tile.layout_ptr)
        sample_ptrs = tl.where(inside, own_ptrs, saved_ptr + n)
        mask = mask & (n < tile.last + tile.radius)
    return tl.load(sample_ptrs, mask, 0.0).to(tile.weights_ptr.dtype.element_ty)


@triton.jit
def _add_weighted(sums, tile, start, end, VECTOR: tl.constexpr, AHEAD: tl.constexpr):
    """Add the contributions of the runs from ``start`` to ``end``; ``RUN`` sums ``[rows]``."""
    RUN: tl.constexpr = tile.run.shape[1]
    LAST: tl.constexpr = RUN - 1
    for step in range(start, end):
        x = _split(_load_runs(tile, step * RUN, VECTOR, AHEAD), RUN)
        taps_ptr = tile.weights_ptr + step * RUN - LAST
        near = [
            tl.load(taps_ptr + k) if k <= 2 * LAST else 0.0
            for k in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
        ]
        for k in tl.static_range(RUN):
            if RUN == 8:
                sums = [sums[j] + x[k] * near[LAST + k - j] for j in (0, 1, 2, 3, 4, 5, 6, 7)]
            else:
                sums = [sums[j] + x[k] * near[LAST + k - j] for j in (0, 1, 2, 3)]
    return sums


@triton.jit
def _add_whole(total, lost, tile, start, end, VECTOR: tl.constexpr, AHEAD: tl.constexpr):
    """Compensated sum, ``[rows]``, of runs that lie in the windows of all samples of a row.

    Windows may be long, and of a constant every addition could round the same way.
    """
    for step in range(start, end):
        run = tl.sum(_load_runs(tile, step * tile.run.shape[1], VECTOR, AHEAD), 1) - lost
        before = total
        total += run
        lost = (total - before) - run
    return total, lost


@triton.jit
def _smooth(tile, BOX: tl.constexpr, VECTOR: tl.constexpr):
    """The samples of a tile, and their averages, ``[rows, RUN]`` each."""
    RUN: tl.constexpr = tile.run.shape[1]
    zero = tl.zeros([tile.row.shape[0]], tile.weights_ptr.dtype.element_ty)
    sums = [zero for _ in (0, 1, 2, 3, 4, 5, 6, 7)] if RUN == 8 else [zero for _ in (0, 1, 2, 3)]
    most = (tile.radius + RUN - 1) // RUN
    whole = (tile.radius + 1) // RUN if BOX else 0
    back = tl.minimum(1 - whole, 0)
    sums = _add_weighted(sums, tile, -most, back, VECTOR, False)
    smooth = _join(_add_weighted(sums, tile, whole, most + 1, VECTOR, True), RUN)
    if BOX:
        total, lost = _add_whole(zero, zero, tile, back, 0, VECTOR, False)
        total, lost = _add_whole(total, lost, tile, 0, whole, VECTOR, True)
        smooth += total[:, None] * tl.load(tile.weights_ptr)
    return _load_runs(tile, 0, VECTOR, True), smooth


@triton.jit
def subtract_smooth(
    addresses_ptr,
    layouts_ptr,
    programs_ptr,
    coefficients_ptr,
    borders_ptr,
    BOUNDARY: tl.constexpr,
    BOX: tl.constexpr,
    TILE: tl.constexpr,
    RUN: tl.constexpr,
    SAVED: tl.constexpr,
):
    """Smooth one tile and subtract in place. Without ``SAVED`` the tile is the whole signal."""
    ELEMENT: tl.constexpr = borders_ptr.dtype.element_ty
    signal = _find_smoothed(addresses_ptr, layouts_ptr, programs_ptr, borders_ptr)
    address, layout_ptr, d = signal.address, signal.layout_ptr, signal.length
    radius = signal.radius
    row = RUN * tl.arange(0, TILE // RUN)[:, None]  # [rows, 1]
    run = tl.arange(0, RUN)[None, :]  # [1, RUN]
    reach = reach_of(radius)
    if not SAVED:
        for start in range(0, 2 * reach, TILE):
            _save(signal, 0, start + row, run, BOUNDARY, TILE)
            _save(signal, 1, start + row, run, BOUNDARY, TILE)
        # Some warps have saved what others read.
        block_barrier()

    index = read_field(programs_ptr, fields.FIRST)
    first = index * TILE
    last = tl.minimum(first + TILE, d)
    row += first
    n = row + run  # [rows, RUN]
    weights_ptr = coefficients_ptr + read_field(programs_ptr, fields.TAPS) + 16 + radius
    before_ptr = signal.borders_ptr + index * 2 * reach + reach - first
    behind_ptr = signal.borders_ptr + (index + 1) * 2 * reach + reach
    if signal.vector:
        end = last // 16 * 16  # which it is: this tells the compiler
        samples_ptr = pointer_to(address, ELEMENT, True)
        tile = Tile(
            samples_ptr,
            layout_ptr,
            weights_ptr,
            before_ptr,
            behind_ptr - end,
            row,
            run,
            first,
            end,
            radius,
        )
        value, smooth = _smooth(tile, BOX, True)
    else:
        samples_ptr = pointer_to(address, ELEMENT, False)
        tile = Tile(
            samples_ptr,
            layout_ptr,
            weights_ptr,
            before_ptr,
            behind_ptr - last,
            row,
            run,
            first,
            last,
            radius,
        )
        value, smooth = _smooth(tile, BOX, False)
    if BOUNDARY == COUNT:  # noqa: SIM102 - one is known to the compiler, the other is not
        if (first < radius) | (last + radius > d):
            sums_ptr = weights_ptr + radius + 17
            above_ptrs = sums_ptr + tl.minimum(radius + d - 1 - n, 2 * radius) + 1
            above = tl.load(above_ptrs, n < last, 1.0)
            below = tl.load(sums_ptr + tl.maximum(radius - n, 0), n < last, 0.0)
            smooth = smooth / (above - below)
    result = (value - smooth).to(ELEMENT)
    # Another warp may still have to read what this one is about to overwrite.
    block_barrier()
    if signal.vector:
        tl.store(pointer_to(address, ELEMENT, True) + n, result, row < last)
    else:
        offsets = strided_offsets(n, layout_ptr)
        tl.store(pointer_to(address, ELEMENT, False) + offsets, result, n < last)
