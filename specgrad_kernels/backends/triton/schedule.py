"""The launches of one call: which kernels, which programs, which tables. No tensor is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specgrad_kernels.backends.triton import fields, numbers, targets
from specgrad_kernels.backends.triton.grid import WIDE_LINE, Grid
from specgrad_kernels.backends.triton.signals import Loss, Signal, loss_of, plain_signal
from specgrad_kernels.design import Array
from specgrad_kernels.kinds import BOUNDARIES, LocalAverage
from specgrad_kernels.spec import FilterSpec

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


@dataclass
class _Room:
    """Elements of memory, given out one after the other; aligned starts let loads be wide."""

    length: int = 0

    def take(self, elements: int) -> int:
        start = self.length
        self.length += elements + -elements % 16
        return start


@dataclass
class _Pool(_Room):
    """Coefficient arrays laid end to end, each kept once."""

    parts: dict[Hashable, tuple[int, Array]] = field(default_factory=dict)

    def add(self, make: Callable[..., Array], *arguments: Any, key: Hashable = None) -> int:
        """Place of what ``make`` gives; ``key`` stands for arguments that have no hash."""
        key = (make, key or arguments)
        if key not in self.parts:
            part = make(*arguments).ravel()
            self.parts[key] = self.take(len(part)), part
        return self.parts[key][0]

    def array(self, double: bool) -> NDArray[Any]:
        whole = np.zeros(self.length + 16, np.float64 if double else np.float32)
        for start, part in self.parts.values():
            whole[start : start + len(part)] = part
        return whole


@dataclass
class _Job:
    """What a signal loses, and the numbers that its programs share."""

    loss: Loss
    row: dict[str, int]

    @property
    def grid(self) -> Grid:
        assert self.loss.grid is not None, "only signals with a grid are built"
        return self.loss.grid

    def programs(self, starts: Iterable[int], **others: int) -> list[dict[str, int]]:
        return [self.row | others | {"FIRST": start} for start in starts]


def _launch(kernel: str, rows: Iterable[dict[str, int]], **sizes: Any) -> Launch:
    programs = [[row.get(name, 0) for name in fields.NAMES] for row in rows]
    return Launch(kernel, np.array(programs, dtype=np.int32), sizes)


def build(signals: Sequence[Signal], spec: FilterSpec, double: bool) -> Schedule:
    """The schedule for signals whose strategy is not ``identity`` or ``stacked``."""
    longest_first = sorted(signals, key=lambda signal: -signal.d)
    pool, room, borders = _Pool(), _Room(), _Room()
    jobs: dict[str, list[_Job]] = {"band": [], "means": [], "detrend": []}
    losses: dict[Loss, Loss] = {}
    for position, signal in enumerate(longest_first):
        loss = loss_of(spec, signal.d, signal.index, double)
        loss = losses.setdefault(loss, loss)  # equal ones work their gains out once
        row = {"SLOT": signal.index, "LAYOUT": position, "CELLS": signal.d}
        row["PLAIN"] = int(signal.layout[1:] == plain_signal(signal.d, 0).layout[1:])
        jobs[loss.strategy].append(_Job(loss, row))
    launches = _band(jobs["band"], pool, room) if jobs["band"] else []
    if jobs["means"]:
        rows = (job.row for job in jobs["means"])
        launches.append(_launch("subtract_means", rows, BLOCK=targets.BLOCK[double]))
    if jobs["detrend"]:
        launches += _detrend(jobs["detrend"], spec.boundary, pool, borders)
    table = np.array([signal.layout for signal in longest_first], dtype=np.int64)
    return Schedule(table, pool.array(double), room.length, borders.length, launches)


def _kernel_forms(grids: Sequence[Grid]) -> set[tuple[int, int]]:
    """Samples that the kernels' cells have, and the width of their window.

    A cell may be shorter than the kernel's. So that few signals do not cost two launches of
    their own, they take the form of longer cells that are there anyway.
    """
    samples: Counter[tuple[int, int]] = Counter()
    for grid in grids:
        samples[max(2, 1 << (grid.hop - 1).bit_length()), grid.width] += grid.d
    least = samples.total() / SMALL_SHARE
    kept = {key for key, share in samples.items() if share >= least} or {max(samples)}
    kept |= {key for key in samples if not any(k[1] == key[1] and k[0] >= key[0] for k in kept)}
    return kept


def _band(jobs: Sequence[_Job], pool: _Pool, room: _Room) -> list[Launch]:
    grids = [job.grid for job in jobs]
    logs = {log for grid in grids for log in (grid.log_rows, grid.log_middle)}
    pool.add(numbers.roots, frozenset(logs))
    kept = _kernel_forms(grids)
    by_form: dict[tuple[int, int], list[_Job]] = {}
    for job in jobs:
        width = job.grid.width
        hop = min(form[0] for form in kept if form[1] == width and form[0] >= job.grid.hop)
        _place(job, hop, pool, room)
        by_form.setdefault((hop, width), []).append(job)
    forms = [
        (members, {"HOP": hop, "WIDTH": width, "ROWS": targets.rows_of(hop)})
        for (hop, width), members in by_form.items()
    ]
    launches = [_spread(*form) for form in forms]
    split = [job for job in jobs if job.grid.log_middle]
    if split:
        launches.append(_middle(split, pool, inverse=False))
    launches.append(_solve(jobs, pool))
    if split:
        launches.append(_middle(split, pool, inverse=True))
    return launches + [_interpolate(*form, pool) for form in forms]


def _place(job: _Job, hop: int, pool: _Pool, room: _Room) -> None:
    """Places of the grid, of its transform and of what comes back.

    The coarse cells that ``interpolate`` forms take the place of what is no longer needed: the
    grid, or the transform where the lines are split and the grid's place is taken already.
    """
    grid, row = job.grid, job.row
    cells, width = grid.cells, grid.width
    tiles = 4 * targets.rows_of(hop)
    formed = -(-cells // (tiles - width)) * tiles
    row["PLAIN"] &= hop == grid.hop and cells >= width
    row |= {
        "CELLS": cells,
        "HOP": grid.hop,
        "COLUMNS": grid.columns,
        "LOG_MIDDLE": grid.log_middle,
        "LOG_ROWS": grid.log_rows,
        "TAPS": pool.add(numbers.taps, grid.window, hop, width),
    }
    if grid.log_middle:
        transform = 2 * (grid.columns // 2 + 1) << (grid.log_middle + grid.log_rows)
        row["GRID"] = row["BACK"] = room.take(cells)
        row["LINES"] = room.take(max(transform, formed))
    else:
        row["GRID"] = room.take(max(cells, formed))
        row["BACK"] = room.take(cells)


def _spread(jobs: Sequence[_Job], sizes: dict[str, int]) -> Launch:
    rows = [
        row for job in jobs for row in job.programs(range(0, job.grid.cells, 4 * sizes["ROWS"]))
    ]
    return _launch("spread", rows, **sizes)


def _middle(jobs: Sequence[_Job], pool: _Pool, inverse: bool) -> Launch:
    rows = []
    for job in jobs:
        columns, log_middle, log_rows = job.grid.columns, job.grid.log_middle, job.grid.log_rows
        starts = range(0, 1 << log_rows, targets.MIDDLE_LANES >> (3 if log_middle > 3 else 0))
        matrix = pool.add(numbers.column_tables, columns)
        turns = pool.add(numbers.middle_turns, columns, log_middle, log_rows)
        for column_bin in range(columns // 2 + 1):
            rows += job.programs(starts, BIN=column_bin, MATRIX=matrix, TURNS=turns)
    return _launch("middle", rows, LANES=targets.MIDDLE_LANES, INVERSE=inverse)


def _solve(jobs: Sequence[_Job], pool: _Pool) -> Launch:
    lanes = targets.LANES[any(job.grid.log_rows == WIDE_LINE for job in jobs)]
    rows = []
    for job in jobs:
        grid, loss = job.grid, job.loss
        if grid.circulant:
            matrix = pool.add(numbers.circulant, grid, loss.gains, key=loss)
            rows += job.programs(range(0, grid.cells, lanes), MATRIX=matrix)
            continue
        matrix = pool.add(numbers.column_tables, grid.columns)
        lines = (grid.columns // 2 + 1) << grid.log_middle
        for first in range(0, lines, 8 * lanes >> grid.log_rows):
            which = (grid, loss.gains, first, lanes)
            turns = pool.add(numbers.line_tables, *which, key=(loss, first))
            rows += job.programs([first], MATRIX=matrix, TURNS=turns)
    return _launch("solve", rows, LANES=lanes)


def _interpolate(jobs: Sequence[_Job], sizes: dict[str, int], pool: _Pool) -> Launch:
    formed = 4 * sizes["ROWS"]
    rows = []
    for job in jobs:
        grid = job.grid
        back = pool.add(numbers.columns_back, grid.columns)
        # One column of any length: a cell's number is its place.
        whole = {"COLUMNS": 1, "LOG_ROWS": 30} if grid.circulant else {}
        scratch = job.row["LINES" if grid.log_middle else "GRID"]
        starts = range(0, grid.cells, formed - sizes["WIDTH"])
        for tile, row in enumerate(job.programs(starts, MATRIX=back, **whole)):
            rows.append(row | {"GRID": scratch + tile * formed})
    return _launch("interpolate", rows, **sizes)


def _detrend(jobs: Sequence[_Job], boundary: str, pool: _Pool, borders: _Room) -> list[Launch]:
    averages = [job.loss.wanted for job in jobs if isinstance(job.loss.wanted, LocalAverage)]
    tile = targets.tile_of(max(average.radius for average in averages))
    saved = any(job.loss.d > tile for job in jobs)
    copies, filters = [], []
    for job, average in zip(jobs, averages, strict=True):
        tiles = -(-job.loss.d // tile)
        items = 2 * (average.radius + -average.radius % 16)  # around a border
        job.row |= {
            "COLUMNS": average.radius,
            "GRID": borders.take((tiles + 1) * items),
            "TAPS": pool.add(numbers.weights, average, key=job.loss),
        }
        filters += job.programs(range(tiles))
        for border in range(tiles + 1 if saved else 0):
            copies += job.programs(range(0, items, targets.SPAN), BIN=border)
    sizes = {"BOUNDARY": BOUNDARIES.index(boundary), "TILE": tile}
    launches = [_launch("save_borders", copies, SPAN=targets.SPAN, **sizes)] if copies else []
    if saved:
        # What lies outside was saved by then: only the division by counted weights is left.
        sizes["BOUNDARY"] = min(sizes["BOUNDARY"], BOUNDARIES.index("circular"))
    sizes |= {"BOX": averages[0].box, "SAVED": saved}
    return [*launches, _launch("subtract_smooth", filters, **sizes)]
