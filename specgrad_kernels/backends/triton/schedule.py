"""The launches of one call: which kernels, which programs, which tables. No tensor is touched."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specgrad_kernels.backends.triton import fields, numbers, targets
from specgrad_kernels.backends.triton.grid import WIDE_LINE, Grid, plan_grid
from specgrad_kernels.backends.triton.signals import Signal
from specgrad_kernels.design import Array
from specgrad_kernels.kinds import BOUNDARIES, LocalAverage, Numbers
from specgrad_kernels.spec import FilterSpec

MAX_LENGTH = 1 << 29
"""Longest signal whose arithmetic stays within 32 bits."""
SMALL_SHARE = 8
"""A kernel's second form must serve this part of the samples to be worth launches of its own."""


@dataclass(frozen=True)
class Launch:
    """One kernel over ``len(programs)`` programs, with its compile-time sizes."""

    kernel: str
    programs: NDArray[np.int32]
    sizes: dict[str, Any]


@dataclass
class Schedule:
    """Tables and launches for the signals of one dtype."""

    table: NDArray[np.int64]
    coefficients: NDArray[Any]
    workspace: int
    borders: int
    launches: list[Launch]


def numbers_of(spec: FilterSpec, d: int, index: int) -> Numbers | None:
    """What a signal of ``d`` samples loses, ``None`` for the identity."""
    parameters = spec.kind.parameters(spec, (d,), index) if d else None
    return None if parameters is None else spec.kind.numbers(parameters, d, spec)


def removed_by(wanted: Numbers) -> Array:
    """What is taken out of the first bins, up to the last of which something is."""
    assert not isinstance(wanted, LocalAverage)
    return np.trim_zeros(wanted.removed, "b")


def strategy_of(wanted: Numbers | None, d: int, double: bool) -> str:
    """``identity``, ``means``, ``detrend``, ``band`` or ``stacked`` (PyTorch, by length)."""
    if wanted is None or d > MAX_LENGTH:
        return "identity" if wanted is None else "stacked"
    if isinstance(wanted, LocalAverage):
        return "detrend"
    removed = removed_by(wanted)
    if len(removed) == 1 and removed[0] == 1:
        return "means"
    return "band" if plan_grid(d, len(removed), double) is not None else "stacked"


@dataclass
class _Pool:
    """Coefficient arrays laid end to end, each kept once."""

    parts: list[NDArray[np.float64]] = field(default_factory=list)
    offsets: dict[tuple, int] = field(default_factory=dict)
    length: int = 0

    def add(self, key: tuple, make: Callable[[], NDArray[np.float64]]) -> int:
        if key not in self.offsets:
            part = make().ravel()
            # Aligned starts let the kernels' loads be wide.
            padding = -len(part) % 16
            self.parts.append(np.concatenate([part, np.zeros(padding)]))
            self.offsets[key] = self.length
            self.length += len(part) + padding
        return self.offsets[key]

    def array(self, double: bool) -> NDArray[Any]:
        return np.concatenate([*self.parts, np.zeros(16)]).astype(
            np.float64 if double else np.float32
        )


@dataclass
class _Room:
    """Elements of scratch memory, given out one after the other."""

    length: int = 0

    def take(self, elements: int) -> int:
        start = self.length
        self.length += elements + -elements % 16
        return start


def _layouts(signals: Sequence[Signal]) -> NDArray[np.int64]:
    rows = [(signal.base, *signal.sizes[1:], *signal.strides) for signal in signals]
    return np.array(rows, dtype=np.int64)


def _programs(rows: Iterable[dict[str, int]]) -> NDArray[np.int32]:
    return np.array([[row.get(n, 0) for n in fields.NAMES] for row in rows], dtype=np.int32)


@dataclass
class _Job:
    """A signal, what it loses, and the numbers that all its programs share."""

    signal: Signal
    wanted: Numbers
    strategy: str
    key: Hashable
    row: dict[str, int]


def build(signals: Sequence[Signal], spec: FilterSpec, double: bool) -> Schedule:
    """The schedule for signals whose strategy is not ``identity`` or ``stacked``."""
    longest_first = sorted(signals, key=lambda signal: -signal.d)
    pool, room, borders = _Pool(), _Room(), _Room()
    jobs: dict[str, list[_Job]] = {"band": [], "means": [], "detrend": []}
    for position, signal in enumerate(longest_first):
        wanted = numbers_of(spec, signal.d, signal.index)
        assert wanted is not None
        row = {"SLOT": signal.index, "LAYOUT": position, "CELLS": signal.d}
        row["PLAIN"] = int(not signal.strided)
        key = (signal.d, spec.kind.parameters(spec, (signal.d,), signal.index))
        strategy = strategy_of(wanted, signal.d, double)
        jobs[strategy].append(_Job(signal, wanted, strategy, key, row))
    launches = _band(jobs["band"], pool, room, double) if jobs["band"] else []
    if jobs["means"]:
        sizes = targets.sizes_of("subtract_means", double)
        launches.append(Launch("subtract_means", _programs(j.row for j in jobs["means"]), sizes))
    if jobs["detrend"]:
        launches += _detrend(jobs["detrend"], spec.boundary, pool, borders, double)
    table = _layouts(longest_first)
    return Schedule(table, pool.array(double), room.length, borders.length, launches)


@dataclass
class _Planned:
    """A signal with its grid, and the numbers that its programs share."""

    grid: Grid
    gains: Array
    key: Hashable
    hop: int
    width: int
    row: dict[str, int]
    scratch: int = 0

    def programs(self, starts: Iterable[int], **numbers_of: int) -> list[dict[str, int]]:
        return [self.row | numbers_of | {"FIRST": start} for start in starts]


def _kernel_hops(grids: Sequence[Grid]) -> dict[tuple[int, int], int]:
    """Samples that the kernels' cells have, by the grid's own hop and its window's width.

    A cell may be shorter than the kernel's. So that few signals do not cost two launches of
    their own, they take the form of longer cells that are there anyway.
    """
    samples: dict[tuple[int, int], int] = {}
    for grid in grids:
        key = (max(2, 1 << (grid.hop - 1).bit_length()), _width(grid))
        samples[key] = samples.get(key, 0) + grid.d
    least = sum(samples.values()) / SMALL_SHARE
    kept = {key for key, share in samples.items() if share >= least} or {max(samples)}
    kept |= {key for key in samples if not any(k[1] == key[1] and k[0] >= key[0] for k in kept)}
    return {
        (grid.hop, _width(grid)): min(
            hop for hop, width in kept if width == _width(grid) and hop >= grid.hop
        )
        for grid in grids
    }


def _width(grid: Grid) -> int:
    return grid.window.width if grid.window else targets.SHORT_WINDOW


def _band(jobs: Sequence[_Job], pool: _Pool, room: _Room, double: bool) -> list[Launch]:
    removed = [removed_by(job.wanted) for job in jobs]
    grids = []
    for job, bins in zip(jobs, removed, strict=True):
        grid = plan_grid(job.signal.d, len(bins), double)
        assert grid is not None, "only signals with a grid are built"
        grids.append(grid)
    logs = {log for grid in grids for log in (grid.log_rows, grid.log_middle)}
    pool.add(("roots",), partial(numbers.roots, logs))
    hops = _kernel_hops(grids)
    lanes = targets.lanes_of(any(grid.log_rows == WIDE_LINE for grid in grids))
    gains = {
        job.key: numbers.gains(grid, bins)
        for job, grid, bins in zip(jobs, grids, removed, strict=True)
    }
    planned = [
        _plan(job, grid, gains[job.key], hops[grid.hop, _width(grid)], pool, room)
        for job, grid in zip(jobs, grids, strict=True)
    ]
    by_form: dict[tuple[int, int], list[_Planned]] = {}
    for item in planned:
        by_form.setdefault((item.hop, item.width), []).append(item)
    launches = [_spread(items, *form) for form, items in by_form.items()]
    split = [item for item in planned if item.grid.log_middle]
    if split:
        launches.append(_middle(split, pool, inverse=False))
    launches.append(_solve(planned, pool, lanes))
    if split:
        launches.append(_middle(split, pool, inverse=True))
    return launches + [_interpolate(items, pool, *form) for form, items in by_form.items()]


def _plan(job: _Job, grid: Grid, gains: Array, hop: int, pool: _Pool, room: _Room) -> _Planned:
    """Places of the grid, of its transform and of what comes back.

    The coarse cells that ``interpolate`` forms take the place of what is no longer needed: the
    grid, or the transform where the lines are split and the grid's place is taken already.
    """
    cells, width = grid.cells, _width(grid)
    tiles = 4 * targets.rows_of(hop)
    formed = -(-cells // (tiles - width)) * tiles
    row = job.row | {
        "PLAIN": int(not job.signal.strided and hop == grid.hop and cells >= width),
        "CELLS": cells,
        "HOP": grid.hop,
        "COLUMNS": grid.columns,
        "LOG_MIDDLE": grid.log_middle,
        "LOG_ROWS": grid.log_rows,
        "TAPS": pool.add(
            ("taps", grid.window, hop, width), partial(numbers.taps, grid, hop, width)
        ),
    }
    if grid.log_middle:
        transform = 2 * (grid.columns // 2 + 1) << (grid.log_middle + grid.log_rows)
        row["GRID"] = row["BACK"] = room.take(cells)
        row["LINES"] = scratch = room.take(max(transform, formed))
    else:
        row["GRID"] = scratch = room.take(max(cells, formed))
        row["BACK"] = room.take(cells)
    return _Planned(grid, gains, job.key, hop, width, row, scratch)


def _spread(items: Sequence[_Planned], hop: int, width: int) -> Launch:
    sizes = {"HOP": hop, "WIDTH": width, "ROWS": targets.rows_of(hop)}
    tile = 4 * sizes["ROWS"]
    rows = [row for item in items for row in item.programs(range(0, item.grid.cells, tile))]
    return Launch("spread", _programs(rows), sizes)


def _middle(items: Sequence[_Planned], pool: _Pool, inverse: bool) -> Launch:
    rows = []
    for item in items:
        grid = item.grid
        wide = targets.MIDDLE_LANES >> (3 if grid.log_middle > 3 else 0)
        matrix = pool.add(("forward", grid.columns), partial(numbers.column_tables, grid.columns))
        key = ("middle", grid.columns, grid.log_middle, grid.log_rows)
        turns = pool.add(key, partial(numbers.middle_turns, grid))
        for column_bin in range(grid.columns // 2 + 1):
            starts = range(0, 1 << grid.log_rows, wide)
            rows += item.programs(starts, BIN=column_bin, MATRIX=matrix, TURNS=turns)
    return Launch("middle", _programs(rows), {"LANES": targets.MIDDLE_LANES, "INVERSE": inverse})


def _solve(items: Sequence[_Planned], pool: _Pool, lanes: int) -> Launch:
    rows = []
    for item in items:
        grid, gains = item.grid, item.gains
        if grid.circulant:
            matrix = pool.add(("circulant", item.key), partial(numbers.circulant, grid, gains))
            rows += item.programs(range(0, grid.cells, lanes), MATRIX=matrix)
            continue
        matrix = pool.add(("forward", grid.columns), partial(numbers.column_tables, grid.columns))
        lines = (grid.columns // 2 + 1) << grid.log_middle
        for first in range(0, lines, 8 * lanes >> grid.log_rows):
            turns = pool.add(
                ("lines", item.key, first),
                partial(numbers.line_tables, grid, gains, first, lanes),
            )
            rows += item.programs([first], MATRIX=matrix, TURNS=turns)
    return Launch("solve", _programs(rows), {"LANES": lanes})


def _interpolate(items: Sequence[_Planned], pool: _Pool, hop: int, width: int) -> Launch:
    sizes = {"HOP": hop, "WIDTH": width, "ROWS": targets.rows_of(hop)}
    formed = 4 * sizes["ROWS"]
    rows = []
    for item in items:
        grid = item.grid
        back = pool.add(("back", grid.columns), partial(numbers.columns_back, grid.columns))
        # One column of any length: a cell's number is its place.
        whole = {"COLUMNS": 1, "LOG_ROWS": 30} if grid.circulant else {}
        starts = range(0, grid.cells, formed - width)
        for tile, row in enumerate(item.programs(starts, MATRIX=back, **whole)):
            rows.append(row | {"GRID": item.scratch + tile * formed})
    return Launch("interpolate", _programs(rows), sizes)


def _detrend(
    jobs: Sequence[_Job], boundary: str, pool: _Pool, borders: _Room, double: bool
) -> list[Launch]:
    averages = [job.wanted for job in jobs if isinstance(job.wanted, LocalAverage)]
    sizes = targets.sizes_of("subtract_smooth", double)
    lines = 64 if max(average.radius for average in averages) <= 16 else 128
    tile = lines * sizes["LINE"]
    span = targets.sizes_of("save_borders", double)["SPAN"]
    saved = any(job.signal.d > tile for job in jobs)
    copies, filters = [], []
    for job, average in zip(jobs, averages, strict=True):
        tiles = -(-job.signal.d // tile)
        items = (tiles + 1) * 2 * average.radius if saved else 0
        row = job.row | {
            "COLUMNS": average.radius,
            "BIN": tiles,
            "GRID": borders.take(items),
            "TAPS": pool.add(("weights", job.key), partial(numbers.weights, average)),
        }
        filters += [row | {"FIRST": index} for index in range(tiles)]
        copies += [row | {"FIRST": first} for first in range(0, items, span)]
    code = BOUNDARIES.index(boundary)
    launches = []
    if copies:
        save = {"BOUNDARY": code, "TILE": tile, "SPAN": span}
        launches.append(Launch("save_borders", _programs(copies), save))
    if saved:
        # What lies outside was saved by then: only the division by counted weights is left.
        code = min(code, BOUNDARIES.index("circular"))
    sizes = {**sizes, "BOUNDARY": code, "LINES": lines, "SAVED": saved}
    return [*launches, Launch("subtract_smooth", _programs(filters), sizes)]
