"""The launches of one call: which kernels, which programs, which tables. No tensor is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specgrad_kernels.backends.triton import design, fields, targets
from specgrad_kernels.backends.triton.design import Band
from specgrad_kernels.backends.triton.signals import Signal
from specgrad_kernels.spec import FilterSpec

MAX_LENGTH = 1 << 29
"""Longest signal whose arithmetic stays within 32 bits."""
BOUNDARY_CODES = {"count": 0, "circular": 1, "reflect": 2, "replicate": 3}


@dataclass(frozen=True)
class Launch:
    """One kernel over ``len(programs)`` programs, with its compile-time sizes."""

    kernel: str
    programs: NDArray[np.int32]
    sizes: dict[str, Any]


@dataclass
class Schedule:
    """Tables and launches for the signals of one dtype."""

    double: bool
    table: NDArray[np.int64]
    coefficients: NDArray[Any]
    workspace: int
    borders: int
    launches: list[Launch]
    strided: bool
    radius: int = 0


def strategy_of(spec: FilterSpec, d: int, index: int, double: bool) -> str:
    """``identity``, ``detrend``, ``band``, ``dense`` or ``stacked`` (PyTorch, by length)."""
    if d == 0 or _parameter(spec, d, index) is None:
        return "identity"
    if d > MAX_LENGTH:
        return "stacked"
    if spec.method != "fft":
        return "detrend"
    cutoff = spec.cutoff(d, index)
    if design.plan_band(d, cutoff, double) is not None:
        return "band"
    return "dense" if design.suits_dense(d, cutoff) else "stacked"


def _parameter(spec: FilterSpec, d: int, index: int) -> float | None:
    if spec.method == "lap":
        return spec.window_of(d, index)
    if spec.method == "gaussian":
        return spec.sigma_of(d, index)
    return spec.cutoff(d, index) or None


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


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _row(signal: Signal, **numbers: int) -> list[int]:
    values = {
        "SLOT": signal.index,
        "BASE": signal.base,
        "LENGTH": signal.d,
        **{f"SIZE{axis}": signal.sizes[axis] for axis in (1, 2, 3)},
        **{f"STRIDE{axis}": signal.strides[axis] for axis in range(4)},
        **numbers,
    }
    return [values.get(name, 0) for name in fields.NAMES]


def _programs(rows: Iterable[tuple[int, ...]]) -> NDArray[np.int32]:
    return np.array(list(rows), dtype=np.int32)


def build(signals: Sequence[Signal], spec: FilterSpec, double: bool) -> Schedule:
    """The schedule for signals whose strategy is not ``identity`` or ``stacked``."""
    longest_first = sorted(signals, key=lambda signal: -signal.d)
    strided = any(signal.strided for signal in signals)
    make = _build_fft if spec.method == "fft" else _build_detrend
    return make(longest_first, spec, double, strided)


def _build_fft(
    signals: Sequence[Signal], spec: FilterSpec, double: bool, strided: bool
) -> Schedule:
    pool = _Pool()
    rows: list[list[int]] = []
    bands: list[tuple[int, Band]] = []
    dense: list[int] = []
    workspace = 0
    for position, signal in enumerate(signals):
        cutoff = spec.cutoff(signal.d, signal.index)
        band = design.plan_band(signal.d, cutoff, double)
        if band is None:
            dense.append(position)
            rows.append(_row(signal, CUTOFF=cutoff, WORK=workspace))
            workspace += 2 * cutoff
        else:
            bands.append((position, band))
            rows.append(_row(signal, WORK=workspace, **_band_numbers(band, pool)))
            workspace += workspace_of(band)
        workspace += -workspace % 16
    launches = _band_launches(bands, double) if bands else []
    if dense:
        programs = _programs((position,) for position in dense)
        launches.append(
            Launch("project_waves", programs, targets.sizes_of("project_waves", double))
        )
    table = np.array(rows, dtype=np.int64)
    return Schedule(double, table, pool.array(double), workspace, 0, launches, strided)


def workspace_of(band: Band) -> int:
    """Elements of workspace; a split line needs two more rows between its launches."""
    return (band.columns + (2 if band.middle > 1 else 0)) * band.middle * band.rows


def _band_numbers(band: Band, pool: _Pool) -> dict[str, int]:
    stride = band.columns * band.middle
    highest = band.columns // 2 + band.columns * (band.middle - 1)
    first_bin = -((band.cutoff - 1 + highest) // stride)
    last_bin = (band.cutoff - 1) // stride
    window = (band.decimation, band.width, band.beta)
    return {
        "CUTOFF": band.cutoff,
        "DECIMATION": band.decimation,
        "WIDTH": band.width,
        "COLUMNS": band.columns,
        "MIDDLE": band.middle,
        "ROWS": band.rows,
        "TAPS": pool.add(("taps", *window), lambda: design.window_taps(*window)),
        "GAINS": pool.add(("gains", band), lambda: design.gains(band)),
        "COLUMN_MATRIX": pool.add(
            ("columns", band.columns), lambda: design.column_matrix(band.columns)
        ),
        "MIDDLE_MATRIX": _roots(pool, band.middle) if band.middle > 1 else 0,
        "ROW_MATRIX": _roots(pool, band.rows),
        "FIRST_BIN": first_bin,
        "BINS": last_bin - first_bin + 1,
    }


def _roots(pool: _Pool, length: int) -> int:
    return pool.add(("roots", length), lambda: np.stack(design.root_matrices(length)))


def _band_launches(bands: Sequence[tuple[int, Band]], double: bool) -> list[Launch]:
    def launch(kernel: str, programs: NDArray[np.int32], **sizes: Any) -> Launch:
        return Launch(kernel, programs, targets.sizes_of(kernel, double) | sizes)

    by_column = _programs(
        (position, first)
        for position, band in bands
        for first in range(0, band.middle * band.rows, design.TILE)
    )
    by_row = _programs(
        (position, first)
        for position, band in bands
        for first in range(0, (band.columns // 2 + 1) * band.middle, design.TILE)
    )
    rows = max(64, _power_of_two(max(band.rows for _, band in bands)))
    spread = launch("spread_columns", by_column)
    solve = launch("solve_rows", by_row, ROWS=rows)
    subtract = launch("subtract_columns", by_column)
    split = [(position, band) for position, band in bands if band.middle > 1]
    if not split:
        return [spread, solve, subtract]
    by_bin = _programs(
        (position, column_bin, first)
        for position, band in split
        for column_bin in range(band.columns // 2 + 1)
        for first in range(0, band.rows, design.TILE)
    )
    forward = launch("transform_middle", by_bin, INVERSE=False)
    inverse = launch("transform_middle", by_bin, INVERSE=True)
    return [spread, forward, solve, inverse, subtract]


def _build_detrend(
    signals: Sequence[Signal], spec: FilterSpec, double: bool, strided: bool
) -> Schedule:
    pool = _Pool()
    weights = [_weights(spec, signal, pool) for signal in signals]
    radii = [length // 2 for _, length in weights]
    sizes = targets.sizes_of("subtract_smooth", double)
    lines = 64 if max(radii) <= 16 else 128
    tile = lines * sizes["LINE"]
    span = targets.sizes_of("save_borders", double)["SPAN"]
    rows, copies, filters = [], [], []
    borders = 0
    saved = any(signal.d > tile for signal in signals)
    for position, signal in enumerate(signals):
        taps, radius = weights[position][0], radii[position]
        tiles = -(-signal.d // tile)
        rows.append(_row(signal, TAPS=taps, RADIUS=radius, TILES=tiles, WORK=borders))
        filters += [(position, index) for index in range(tiles)]
        if saved:
            items = (tiles + 1) * 2 * radius
            copies += [(position, first) for first in range(0, items, span)]
            borders += items
    boundary = {"BOUNDARY": BOUNDARY_CODES[spec.boundary]}
    launches = []
    if copies:
        save = {**boundary, "TILE": tile, "SPAN": span}
        launches.append(Launch("save_borders", _programs(copies), save))
    if saved:
        # What lies outside was saved by then: only the division by counted weights is left.
        boundary = {"BOUNDARY": min(boundary["BOUNDARY"], BOUNDARY_CODES["circular"])}
    sizes = {**sizes, **boundary, "LINES": lines, "SAVED": saved}
    launches.append(Launch("subtract_smooth", _programs(filters), sizes))
    table = np.array(rows, dtype=np.int64)
    return Schedule(double, table, pool.array(double), 0, borders, launches, strided, max(radii))


def _weights(spec: FilterSpec, signal: Signal, pool: _Pool) -> tuple[int, int]:
    """Offset and number of a signal's smoothing weights; their running sums follow them."""
    if spec.method == "lap":
        window = spec.window_of(signal.d, signal.index)
        assert window is not None
        if spec.boundary == "count":
            window = min(window, 2 * signal.d - 1)
        weights = design.box_weights(window)
        key: tuple = ("lap", window)
    else:
        sigma = spec.sigma_of(signal.d, signal.index)
        assert sigma is not None
        weights = design.gaussian_weights(sigma)
        key = ("gaussian", sigma)
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    return pool.add(key, lambda: np.concatenate([weights, sums])), len(weights)
