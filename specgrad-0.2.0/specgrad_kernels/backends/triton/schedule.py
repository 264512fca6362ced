"""The launches of one call: kernels, programs and tables. No tensor is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specgrad_kernels.backends.triton import fields, tables, targets
from specgrad_kernels.backends.triton.coarse_grid import WIDE_LINE, CoarseGrid
from specgrad_kernels.backends.triton.signals import Removal, Signal, contiguous_signal, removal_of
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
    removals: list[Removal]
    """The distinct ones."""


@dataclass
class _Allocator:
    """Elements of memory, given out one after the other; aligned starts make loads vectors."""

    length: int = 0

    def take(self, elements: int) -> int:
        start = self.length
        self.length += elements + -elements % 16
        return start


@dataclass
class _CoefficientPool(_Allocator):
    """Coefficient arrays laid end to end, each kept once."""

    parts: dict[Hashable, tuple[int, Array]] = field(default_factory=dict)

    def add(self, make: Callable[..., Array], *arguments: Any, key: Hashable = None) -> int:
        """Offset of the array that ``make`` gives; ``key`` replaces arguments without a hash."""
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
    """One signal's removal, and the fields that its programs share."""

    removal: Removal
    row: dict[str, int]

    @property
    def grid(self) -> CoarseGrid:
        assert self.removal.grid is not None, "only signals with a grid are built"
        return self.removal.grid

    def programs(self, starts: Iterable[int], **others: int) -> list[dict[str, int]]:
        return [self.row | others | {"FIRST": start} for start in starts]


def _launch(kernel: str, rows: Iterable[dict[str, int]], **sizes: Any) -> Launch:
    programs = np.array([[row.get(name, 0) for name in fields.NAMES] for row in rows], np.int64)
    largest = int(np.abs(programs).max(initial=0))
    if largest > np.iinfo(np.int32).max:
        raise ValueError(
            f"one call needs offsets up to {largest:,} elements and the kernels count to "
            f"{np.iinfo(np.int32).max:,}; filter these gradients in several calls"
        )
    return Launch(kernel, programs.astype(np.int32), sizes)


def build(signals: Sequence[Signal], spec: FilterSpec, double: bool) -> Schedule:
    """Schedule signals whose strategy is not ``identity`` or ``stacked``."""
    removals = [removal_of(spec, signal.d, signal.index, double) for signal in signals]
    return build_for(list(zip(signals, removals, strict=True)), spec.boundary, double)


def build_for(pairs: Sequence[tuple[Signal, Removal]], boundary: str, double: bool) -> Schedule:
    """Schedule signals with what is removed from each."""
    longest_first = sorted(pairs, key=lambda pair: -pair[0].d)
    pool, room, borders = _CoefficientPool(), _Allocator(), _Allocator()
    jobs: dict[str, list[_Job]] = {"band": [], "means": [], "detrend": []}
    removals: dict[Removal, Removal] = {}
    for position, (signal, own) in enumerate(longest_first):
        removal = removals.setdefault(own, own)  # equal ones work their gains out once
        row = {"ADDRESS": signal.index, "LAYOUT": position, "CELLS": signal.d}
        row["VECTOR"] = int(signal.layout[1:] == contiguous_signal(signal.d, 0).layout[1:])
        jobs[removal.strategy].append(_Job(removal, row))
    launches = _band(jobs["band"], pool, room) if jobs["band"] else []
    if jobs["means"]:
        rows = (job.row for job in jobs["means"])
        launches.append(_launch("subtract_means", rows, BLOCK=targets.BLOCK[double]))
    if jobs["detrend"]:
        launches += _detrend(jobs["detrend"], boundary, pool, borders)
    table = np.array([signal.layout for signal, _ in longest_first], dtype=np.int64)
    coefficients = pool.array(double)
    return Schedule(table, coefficients, room.length, borders.length, launches, list(removals))


def _kernel_forms(grids: Sequence[CoarseGrid]) -> set[tuple[int, int]]:
    """Samples of the kernels' cells, and the width of their window.

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


def form_of(grid: CoarseGrid, forms: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The form, of those that are compiled, with the shortest cells that hold the grid's."""
    return min(form for form in forms if form[1] == grid.width and form[0] >= grid.hop)


def lanes_of(logs: Iterable[int]) -> int:
    """Lanes of ``filter_grid`` for lines of such lengths."""
    return targets.LANES[WIDE_LINE in logs]


def _band(jobs: Sequence[_Job], pool: _CoefficientPool, room: _Allocator) -> list[Launch]:
    grids = [job.grid for job in jobs]
    logs = {log for grid in grids for log in (grid.log_rows, grid.log_middle)}
    pool.add(tables.roots, frozenset(logs))
    kept = _kernel_forms(grids)
    by_form: dict[tuple[int, int], list[_Job]] = {}
    for job in jobs:
        form = form_of(job.grid, kept)
        _place(job, form[0], pool, room)
        by_form.setdefault(form, []).append(job)
    forms = [
        (members, {"HOP": hop, "WIDTH": width, "ROWS": targets.rows_of(hop)})
        for (hop, width), members in by_form.items()
    ]
    launches = [_spread(*form) for form in forms]
    split = [job for job in jobs if job.grid.log_middle]
    if split:
        launches.append(_second_factor(split, pool, inverse=False))
    launches.append(_filter_grid(jobs, pool))
    if split:
        launches.append(_second_factor(split, pool, inverse=True))
    return launches + [_interpolate(*form, pool) for form in forms]


def _place(job: _Job, hop: int, pool: _CoefficientPool, room: _Allocator) -> None:
    """Allocate the grid, its split lines and the filtered lines.

    The coarse cells that ``interpolate`` forms reuse what is no longer needed: the grid, or the
    split lines where the grid's memory is reused already.
    """
    grid, row = job.grid, job.row
    cells, width = grid.cells, grid.width
    tiles = 4 * targets.rows_of(hop)
    formed = -(-cells // (tiles - width)) * tiles
    row["VECTOR"] &= hop == grid.hop and cells >= width
    row |= {
        "CELLS": cells,
        "HOP": grid.hop,
        "COLUMNS": grid.columns,
        "LOG_MIDDLE": grid.log_middle,
        "LOG_ROWS": grid.log_rows,
        "TAPS": pool.add(tables.taps, grid.window, hop, width),
    }
    if grid.log_middle:
        transform = 2 * (grid.columns // 2 + 1) << (grid.log_middle + grid.log_rows)
        row["GRID"] = row["RESULT"] = room.take(cells)
        row["LINES"] = room.take(max(transform, formed))
    else:
        row["GRID"] = room.take(max(cells, formed))
        row["RESULT"] = room.take(cells)


def _spread(jobs: Sequence[_Job], sizes: dict[str, int]) -> Launch:
    rows = [
        row for job in jobs for row in job.programs(range(0, job.grid.cells, 4 * sizes["ROWS"]))
    ]
    return _launch("spread", rows, **sizes)


def _second_factor(jobs: Sequence[_Job], pool: _CoefficientPool, inverse: bool) -> Launch:
    rows = []
    for job in jobs:
        columns, log_middle, log_rows = job.grid.columns, job.grid.log_middle, job.grid.log_rows
        starts = range(0, 1 << log_rows, targets.MIDDLE_LANES >> (3 if log_middle > 3 else 0))
        matrix = pool.add(tables.column_tables, columns)
        twiddles = pool.add(tables.middle_twiddles, columns, log_middle, log_rows)
        for column_bin in range(columns // 2 + 1):
            rows += job.programs(starts, BIN=column_bin, MATRIX=matrix, TWIDDLES=twiddles)
    return _launch("second_factor", rows, LANES=targets.MIDDLE_LANES, INVERSE=inverse)


def _filter_grid(jobs: Sequence[_Job], pool: _CoefficientPool) -> Launch:
    lanes = lanes_of(job.grid.log_rows for job in jobs)
    rows = []
    for job in jobs:
        grid, removal = job.grid, job.removal
        if grid.circulant:
            matrix = pool.add(tables.circulant, grid, removal.gains, key=removal)
            rows += job.programs(range(0, grid.cells, lanes), MATRIX=matrix)
            continue
        matrix = pool.add(tables.column_tables, grid.columns)
        lines = (grid.columns // 2 + 1) << grid.log_middle
        for first in range(0, lines, 8 * lanes >> grid.log_rows):
            which = (grid, removal.gains, first, lanes)
            twiddles = pool.add(tables.line_tables, *which, key=(removal, first))
            rows += job.programs([first], MATRIX=matrix, TWIDDLES=twiddles)
    return _launch("filter_grid", rows, LANES=lanes)


def _interpolate(jobs: Sequence[_Job], sizes: dict[str, int], pool: _CoefficientPool) -> Launch:
    formed = 4 * sizes["ROWS"]
    rows = []
    for job in jobs:
        grid = job.grid
        back = pool.add(tables.columns_back, grid.columns)
        # One column of any length: a cell's number is its place.
        whole = {"COLUMNS": 1, "LOG_ROWS": 30} if grid.circulant else {}
        scratch = job.row["LINES" if grid.log_middle else "GRID"]
        starts = range(0, grid.cells, formed - sizes["WIDTH"])
        for tile, row in enumerate(job.programs(starts, MATRIX=back, **whole)):
            rows.append(row | {"GRID": scratch + tile * formed})
    return _launch("interpolate", rows, **sizes)


def _detrend(
    jobs: Sequence[_Job], boundary: str, pool: _CoefficientPool, borders: _Allocator
) -> list[Launch]:
    averages = [job.removal.wanted for job in jobs if isinstance(job.removal.wanted, LocalAverage)]
    tile = targets.tile_of(max(average.radius for average in averages))
    saved = any(job.removal.d > tile for job in jobs)
    copies, filters = [], []
    for job, average in zip(jobs, averages, strict=True):
        tiles = -(-job.removal.d // tile)
        items = 2 * (average.radius + -average.radius % 16)  # around a border
        job.row |= {
            "COLUMNS": average.radius,
            "GRID": borders.take((tiles + 1) * items),
            "TAPS": pool.add(tables.weights, average, key=job.removal),
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
