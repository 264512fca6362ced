"""Kernels that subtract averages: means (``centralize``), and moving ones (``lap``, ``gaussian``).

Of moving averages, a lane's row is a run of neighbouring samples: every run that is loaded serves
all sums of the row, with weights that all lanes share. Runs that lie in all windows of a moving
average of equal weights are added up once. Tiles write in place, so what lies around each of them
is saved first: ``save_borders`` copies the samples on both sides of every tile border, with the
boundary rule applied, and ``subtract_smooth`` reads its neighbours there. A signal that fits in
one tile is left to ``subtract_smooth`` alone, which saves what it needs itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields
from specgrad_kernels.backends.triton.fields import find_signal, number, offset_of, samples_at
from specgrad_kernels.backends.triton.solve import join8, split8

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
def reach_of(radius):
    """Samples that are saved on each side of a border: whole vectors of every dtype."""
    return (radius + 15) // 16 * 16


@triton.jit
def _signal(pointers, table, programs, borders):
    """Address, layout, length and radius, where its borders are saved, and whether it is accessed
    in whole vectors."""
    d = number(programs, fields.LENGTH)
    address, layout = find_signal(pointers, table, programs, borders.dtype.element_ty)
    borders += tl.multiple_of(number(programs, fields.BORDERS), 16)
    wide = (number(programs, fields.PLAIN) == 1) & (address % 16 == 0) & (d % 16 == 0)
    return address, layout, d, number(programs, fields.RADIUS), borders, wide


@triton.jit
def _save(signal, border, row, run, BOUNDARY: tl.constexpr, TILE: tl.constexpr):
    """Copy some runs of the samples around one border."""
    address, layout, d, radius, borders, wide = signal
    ELEMENT: tl.constexpr = borders.dtype.element_ty
    reach = reach_of(radius)
    near = tl.minimum(border * TILE, d) - reach
    wanted = row < 2 * reach
    if wide & (near >= 0) & (near + 2 * reach <= d):
        near = near // 16 * 16  # which it is: this tells the compiler
        value = tl.load(samples_at(address, ELEMENT, True) + near + (row + run), wanted, 0.0)
    else:
        n = near + row + run
        known = wanted
        if BOUNDARY == COUNT:
            known = known & (n >= 0) & (n < d)
        place = offset_of(extended(n, d, radius, BOUNDARY), layout)
        value = tl.load(samples_at(address, ELEMENT, False) + place, known, 0.0)
    tl.store(borders + border * 2 * reach + (row + run), value, wanted)


@triton.jit
def save_borders(
    pointers,
    table,
    programs,
    borders,
    BOUNDARY: tl.constexpr,
    TILE: tl.constexpr,
    RUN: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Copy ``SPAN`` of the samples around one tile border."""
    signal = _signal(pointers, table, programs, borders)
    start = tl.multiple_of(number(programs, fields.FIRST), 16)
    row = start + RUN * tl.arange(0, SPAN // RUN)[:, None]
    border = number(programs, fields.BORDER)
    _save(signal, border, row, tl.arange(0, RUN)[None, :], BOUNDARY, TILE)


@triton.jit
def _split(x, RUN: tl.constexpr):
    """The places of a run apart from each other."""
    if RUN == 8:
        places = split8(x, x.shape[0])
    else:
        even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2]))
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
        places = (x0, x1, x2, x3)
    return places


@triton.jit
def _join(x, RUN: tl.constexpr):
    """The places of a run together."""
    if RUN == 8:
        runs = join8(x, x[0].shape[0])
    else:
        runs = tl.join(tl.join(x[0], x[2]), tl.join(x[1], x[3]))
        runs = tl.reshape(runs, [x[0].shape[0], 4])
    return runs


@triton.jit
def _runs(tile, step, WIDE: tl.constexpr, ON: tl.constexpr):
    """The runs ``step`` samples on from each row's own (``ON``) or back, saved ones where these are
    beyond the tile's border."""
    samples, layout, weights, before, behind, row, run, first, last, radius = tile
    n = row + step + run
    saved = behind if ON else before
    known = row < last
    if WIDE:
        inside = row + step < last if ON else row + step >= first
        place = tl.multiple_of(tl.where(inside, samples, saved), (16, 16)) + n
    else:
        inside = n < last if ON else n >= first
        place = tl.where(inside, samples + offset_of(n, layout), saved + n)
        known = known & (n < last + radius)
    return tl.load(place, known, 0.0).to(weights.dtype.element_ty)


@triton.jit
def _add_weighted(sums, tile, start, end, WIDE: tl.constexpr, ON: tl.constexpr):
    """To each place of a run, what the runs from ``start`` to ``end`` contribute."""
    RUN: tl.constexpr = tile[6].shape[1]
    LAST: tl.constexpr = RUN - 1
    for step in range(start, end):
        x = _split(_runs(tile, step * RUN, WIDE, ON), RUN)
        taps = tile[2] + step * RUN - LAST
        near = [
            tl.load(taps + k) if k <= 2 * LAST else 0.0
            for k in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
        ]
        for k in tl.static_range(RUN):
            if RUN == 8:
                sums = [sums[j] + x[k] * near[LAST + k - j] for j in (0, 1, 2, 3, 4, 5, 6, 7)]
            else:
                sums = [sums[j] + x[k] * near[LAST + k - j] for j in (0, 1, 2, 3)]
    return sums


@triton.jit
def _add_whole(total, lost, tile, start, end, WIDE: tl.constexpr, ON: tl.constexpr):
    """The sum of runs that lie in the windows of all places of a row, and what rounding added:
    windows may be long, and of a constant every addition could round the same way."""
    for step in range(start, end):
        run = tl.sum(_runs(tile, step * tile[6].shape[1], WIDE, ON), 1) - lost
        before = total
        total += run
        lost = (total - before) - run
    return total, lost


@triton.jit
def _smoothed(tile, BOX: tl.constexpr, WIDE: tl.constexpr):
    """The samples of a tile, and their averages."""
    radius = tile[9]
    RUN: tl.constexpr = tile[6].shape[1]
    zero = tl.zeros([tile[5].shape[0]], tile[2].dtype.element_ty)
    sums = [zero for _ in (0, 1, 2, 3, 4, 5, 6, 7)] if RUN == 8 else [zero for _ in (0, 1, 2, 3)]
    most = (radius + RUN - 1) // RUN
    whole = (radius + 1) // RUN if BOX else 0
    back = tl.minimum(1 - whole, 0)
    sums = _add_weighted(sums, tile, -most, back, WIDE, False)
    smooth = _join(_add_weighted(sums, tile, whole, most + 1, WIDE, True), RUN)
    if BOX:
        total, lost = _add_whole(zero, zero, tile, back, 0, WIDE, False)
        total, lost = _add_whole(total, lost, tile, 0, whole, WIDE, True)
        smooth += total[:, None] * tl.load(tile[2])
    return _runs(tile, 0, WIDE, True), smooth


@triton.jit
def subtract_smooth(
    pointers,
    table,
    programs,
    coefficients,
    borders,
    BOUNDARY: tl.constexpr,
    BOX: tl.constexpr,
    TILE: tl.constexpr,
    RUN: tl.constexpr,
    SAVED: tl.constexpr,
):
    """Smooth one tile and subtract in place. Without ``SAVED`` the tile is the whole signal."""
    ELEMENT: tl.constexpr = borders.dtype.element_ty
    signal = _signal(pointers, table, programs, borders)
    address, layout, d, radius, borders, wide = signal
    row = RUN * tl.arange(0, TILE // RUN)[:, None]
    run = tl.arange(0, RUN)[None, :]
    reach = reach_of(radius)
    if not SAVED:
        for start in range(0, 2 * reach, TILE):
            _save(signal, 0, start + row, run, BOUNDARY, TILE)
            _save(signal, 1, start + row, run, BOUNDARY, TILE)
        # Some warps have saved what others read.
        tl.debug_barrier()

    index = number(programs, fields.FIRST)
    first = index * TILE
    last = tl.minimum(first + TILE, d)
    row += first
    n = row + run
    weights = coefficients + number(programs, fields.TAPS) + 16 + radius
    before = borders + index * 2 * reach + reach - first
    behind = borders + (index + 1) * 2 * reach + reach
    if wide:
        end = last // 16 * 16  # which it is: this tells the compiler
        samples = samples_at(address, ELEMENT, True)
        tile = (samples, layout, weights, before, behind - end, row, run, first, end, radius)
        value, smooth = _smoothed(tile, BOX, True)
    else:
        samples = samples_at(address, ELEMENT, False)
        tile = (samples, layout, weights, before, behind - last, row, run, first, last, radius)
        value, smooth = _smoothed(tile, BOX, False)
    if BOUNDARY == COUNT:  # noqa: SIM102 - one is known to the compiler, the other is not
        if (first < radius) | (last + radius > d):
            sums = weights + radius + 17
            above = tl.load(sums + tl.minimum(radius + d - 1 - n, 2 * radius) + 1, n < last, 1.0)
            below = tl.load(sums + tl.maximum(radius - n, 0), n < last, 0.0)
            smooth = smooth / (above - below)
    result = (value - smooth).to(ELEMENT)
    # Another warp may still have to read what this one is about to overwrite.
    tl.debug_barrier()
    if wide:
        tl.store(samples_at(address, ELEMENT, True) + n, result, row < last)
    else:
        place = offset_of(n, layout)
        tl.store(samples_at(address, ELEMENT, False) + place, result, n < last)
