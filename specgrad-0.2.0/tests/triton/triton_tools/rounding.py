"""The band kernels in NumPy: every rounding of float32 where the compiled kernels round.

Cells are added up and the grid is solved in float64, as on an A100, or in float32, as on GPUs that
are slow at float64.
Thousands of waves take seconds here and days in the interpreter of PTX. Which of two products is
rounded before they are added is the compiler's choice; elsewhere the bits are the same.
``python triton_tools/rounding.py LENGTH COUNT`` prints the worst errors of a longer search.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from specgrad_kernels.backends.triton import tables
from specgrad_kernels.backends.triton.coarse_grid import CoarseGrid, plan_grid
from specgrad_kernels.backends.triton.signals import removal_of
from specgrad_kernels.spec import FilterSpec

Floats = np.ndarray
Pair = tuple[Floats, Floats]
"""Real and imaginary part."""

REAL = np.float32
_HALF = 0.7071067811865476


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """``a * b + c``, rounded once to the precision of ``a`` and ``c``."""
    return (np.float64(a) * b + c).astype(np.result_type(a, c))


def _turn(value: Pair, turns: Floats, sign: int) -> Pair:
    (r, i), (c, s) = value, turns
    if sign == 1:
        return fused(r, c, -(i * s)), fused(r, s, i * c)
    return fused(r, c, i * s), fused(i, c, -(r * s))


def _both(a: Pair, b: Pair, scales: tuple[Floats, Floats] | None = None) -> tuple[Pair, Pair]:
    """Sum and difference; of products, the first is not rounded on its own."""
    if scales is None:
        return (a[0] + b[0], a[1] + b[1]), (a[0] - b[0], a[1] - b[1])
    b = (b[0] * scales[1], b[1] * scales[1])
    total, rest = (
        [fused(x, scales[0], way * y) for x, y in zip(a, b, strict=True)] for way in (1, -1)
    )
    return tuple(total), tuple(rest)


def _dft4(x: list[Pair], sign: int, scales: list[Floats] | None) -> list[Pair]:
    halves = ((0, 2), (1, 3))
    (even, odd), (total, side) = (
        _both(x[a], x[b], scales and (scales[a], scales[b])) for a, b in halves
    )
    side = (-sign * side[1], sign * side[0])
    (first, third), (second, fourth) = _both(even, total), _both(odd, side)
    return [first, second, third, fourth]


def _dft8(x: list[Pair], sign: int, scales: list[Floats] | None) -> list[Pair]:
    low, high = (_dft4(x[k::2], sign, scales and scales[k::2]) for k in (0, 1))
    (r1, i1), (r2, i2), (r3, i3) = high[1:]
    side = _both(low[2], (-sign * i2, sign * r2))
    turned = {1: (r1 - sign * i1, i1 + sign * r1), 3: (-(r3 + sign * i3), sign * r3 - i3)}
    pairs = {0: _both(low[0], high[0]), 2: side}
    for k, far in turned.items():
        pairs[k] = tuple(
            tuple(fused(y, x.dtype.type(way * _HALF), x) for x, y in zip(low[k], far, strict=True))
            for way in (1, -1)
        )
    return [pairs[k][half] for half in (0, 1) for k in range(4)]


def _points(x: list[Pair], sign: int, scales: list[Floats] | None = None) -> list[Pair]:
    return (_dft8 if len(x) == 8 else _dft4)(x, sign, scales)


def _steps(length: int) -> tuple[int, int]:
    radix = min(length, 8)
    return radix, length // radix


def _roots(length: int) -> Floats:
    radix, rest = _steps(length)
    return tables.cosine_and_sine(np.outer(np.arange(radix), np.arange(rest)) / length).astype(REAL)


def forward(x: Pair, length: int) -> Pair:
    """``grid_fft.line_fft`` on the last axis, with bins in their natural order."""
    radix, rest = _steps(length)
    parts = [np.reshape(part, (*part.shape[:-1], radix, rest)) for part in x]
    values = [(parts[0][..., k, :], parts[1][..., k, :]) for k in range(radix)]
    values = _points(values, -1)
    if rest > 1:
        roots = _roots(length)
        values = [forward(_turn(v, roots[:, k], 1), rest) for k, v in enumerate(values)]
    return tuple(np.stack(part, -1).reshape(x[0].shape) for part in zip(*values, strict=True))


def backward(x: Pair, scale: Floats, length: int) -> Pair:
    """``grid_fft.line_fft`` back, of ``x * scale``."""
    radix, rest = _steps(length)
    parts = [np.reshape(part, (*part.shape[:-1], rest, radix)) for part in (*x, scale)]
    values = [(parts[0][..., k], parts[1][..., k]) for k in range(radix)]
    scales = [parts[2][..., k] for k in range(radix)]
    if rest > 1:
        roots = _roots(length)
        values = [
            _turn(backward(values[k], scales[k], rest), roots[:, k], -1) for k in range(radix)
        ]
    values = _points(values, 1, None if rest > 1 else scales)
    return tuple(np.stack(part, -2).reshape(x[0].shape) for part in zip(*values, strict=True))


@dataclass
class Rounded:
    """The kernels for signals of ``d`` samples, as the backend plans them."""

    d: int
    spec: FilterSpec = field(default_factory=FilterSpec)
    solved_in: type = np.float64

    @cached_property
    def removed(self) -> Floats:
        """Share taken out of each of the first bins."""
        return removal_of(self.spec, self.d, 0, double=False).removed

    @cached_property
    def grid(self) -> CoarseGrid:
        """As it is planned in float32."""
        grid = plan_grid(self.d, len(self.removed), double=False)
        assert grid is not None
        assert grid.window is not None
        return grid

    @property
    def promise(self) -> float:
        """The error that a plan names."""
        return self.grid.error(self.solved_in is np.float64)

    @cached_property
    def window(self) -> Floats:
        """``[width, hop]``."""
        width = self.grid.window.width
        return tables.taps(self.grid.window, self.grid.hop, width).astype(REAL)

    def spread(self, x: Floats) -> Floats:
        """``cells.spread``: ``[signals, cells]``."""
        width = len(self.window)
        samples = x.reshape(len(x), self.grid.cells, self.grid.hop)
        near = [np.roll(samples, width // 2 - tap, 1) for tap in range(width)]
        total = np.zeros_like(samples)
        for place in range(4):
            # steps from both ends of the samples that four neighbours share to their middle
            steps = [n // 2 if n % 2 == 0 else width + 2 - n // 2 for n in range(width + 3)]
            for tap in (step - place for step in steps if 0 <= step - place < width):
                own = (slice(None), slice(place, None, 4))
                total[own] = fused(self.window[tap], near[tap][own], total[own])
        total = total.astype(self.solved_in)
        while total.shape[2] > 1:
            total = total[:, :, ::2] + total[:, :, 1::2]
        return total[:, :, 0].astype(REAL)

    def solve(self, y: Floats) -> Floats:
        """``solve.solve``: what comes back, ``[signals, columns, rest]``."""
        grid = self.grid
        gains = tables.gains(grid, self.removed)
        y = y.astype(self.solved_in)
        if grid.circulant:
            kernel = tables.circulant(grid, gains).astype(REAL)
            return self._circulant(y, kernel)[:, None].astype(REAL)
        line = self._columns(y.reshape(len(y), grid.columns, -1))
        middle, rows = 1 << grid.log_middle, 1 << grid.log_rows
        line = tuple(part.reshape(*part.shape[:2], middle, rows) for part in line)
        bins = np.arange(grid.columns // 2 + 1)[:, None]
        at = (bins + grid.columns * np.arange(middle))[..., None]
        at = at + grid.columns * middle * np.arange(rows)
        scale = gains[np.minimum(at, grid.cells - at)] / tables.power_share(grid.columns)
        line = forward(self._before_lines(line), rows)
        line = self._after_lines(backward(line, scale.astype(REAL), rows))
        real, imaginary = (part.reshape(*part.shape[:2], -1).astype(REAL) for part in line)
        return np.concatenate([real, imaginary[:, 1 : (grid.columns + 1) // 2]], axis=1)

    def _columns(self, y: Floats) -> Pair:
        waves = tables.columns_forward(self.grid.columns).astype(REAL)[:, :, :, None]
        line = (y[:, 0, None] * waves[0, 0], np.zeros_like(y[:, : waves.shape[2]]))
        for column in range(1, self.grid.columns):
            value = (y[:, column] - y[:, 0])[:, None]
            line = tuple(fused(value, w[column], part) for w, part in zip(waves, line, strict=True))
        return line

    @cached_property
    def _turns(self) -> list[Floats]:
        """Between columns and rows, or around the middle: by points, by both, by places."""
        grid = self.grid
        middle, rows = 1 << grid.log_middle, 1 << grid.log_rows
        bins = grid.columns // 2 + 1
        if middle > 1:
            table = tables.middle_twiddles(grid.columns, grid.log_middle, grid.log_rows).astype(
                REAL
            )
            point, place, both = np.split(table, np.cumsum([2 * bins * middle, 2 * bins * rows]))
            return [
                point.reshape(2, bins, middle, 1),
                both.reshape(2, 1, middle, rows),
                place.reshape(2, bins, 1, rows),
            ]
        register = tables.column_tables(grid.columns)[-16 * bins :].reshape(2, 8, bins)
        register = np.swapaxes(register, 1, 2)[..., None]
        lane = np.outer(np.arange(bins), np.arange(rows // 8))[:, None] / grid.cells
        lane = tables.cosine_and_sine(lane).astype(REAL)
        turns = _turn(tuple(register.astype(REAL).astype(self.solved_in)), lane, 1)
        return [np.reshape(turns, (2, bins, 1, rows))]

    def _before_lines(self, line: Pair) -> Pair:
        line = _turn(line, self._turns[0], 1)
        if len(self._turns) == 1:
            return line
        line = forward(tuple(np.swapaxes(part, 2, 3) for part in line), 1 << self.grid.log_middle)
        line = tuple(np.swapaxes(part, 2, 3) for part in line)
        for turns in self._turns[1:]:
            line = _turn(line, turns, 1)
        return self._stored(line)

    def _after_lines(self, line: Pair) -> Pair:
        if len(self._turns) > 1:
            line = self._stored(line)
            for turns in self._turns[1:]:
                line = _turn(line, turns, -1)
            points = 1 << self.grid.log_middle
            line = tuple(np.swapaxes(part, 2, 3) for part in line)
            line = tuple(
                np.swapaxes(part, 2, 3) for part in backward(line, np.ones(points), points)
            )
        return _turn(line, self._turns[0], -1)

    def _stored(self, line: Pair) -> Pair:
        """As it is after a launch has stored it for the next."""
        return tuple(part.astype(REAL).astype(self.solved_in) for part in line)

    def _circulant(self, y: Floats, kernel: Floats) -> Floats:
        cells = self.grid.cells
        sums = np.zeros((4, len(y), cells), self.solved_in)
        for n in range(cells):
            own = n % 4 if n < cells // 4 * 4 else 0
            row = kernel[cells - 1 - n : 2 * cells - 1 - n]
            sums[own] = fused((y[:, n] - y[:, 0])[:, None], row, sums[own])
        total = (sums[0] + sums[1]) + (sums[2] + sums[3])
        return fused(y[:, :1], kernel[-1], total)

    def interpolate(self, x: Floats, lines: Floats) -> Floats:
        """``cells.interpolate``: what is left of ``x``."""
        grid, width = self.grid, len(self.window)
        back = tables.columns_back(grid.columns).astype(REAL)[:, :, None]
        coarse = np.zeros_like(lines)
        for row in range(grid.columns):
            coarse = fused(-lines[:, row, None], back[row], coarse)
        coarse = coarse.reshape(len(x), grid.cells)
        left = x.reshape(len(x), grid.cells, grid.hop)
        for away in range(width // 2):
            for tap in (width // 2 - 1 - away, width // 2 + away):
                near = np.roll(coarse, tap - width // 2, 1)[:, :, None]
                left = fused(self.window[tap], near, left)
        return left.reshape(x.shape)

    def run(self, x: Floats) -> Floats:
        """Signals ``[signals, d]`` without their band."""
        return self.interpolate(x, self.solve(self.spread(x)))

    def errors(self, x: Floats) -> Floats:
        """Distance of each result from the exact one, relative to what came in."""
        spectrum = np.fft.rfft(np.float64(x), axis=1)
        spectrum[:, : len(self.removed)] *= 1 - self.removed
        exact = np.fft.irfft(spectrum, n=self.d, axis=1)
        return np.linalg.norm(self.run(x) - exact, axis=1) / np.linalg.norm(np.float64(x), axis=1)

    def search(self, count: int) -> dict[str, float]:
        """The worst errors of ``count`` constants, as many waves of the band, and as many with
        periods that divide the length: few values that come again and again, so that their
        rounding does not average out."""
        random = np.random.default_rng(self.d)
        bins = np.arange(1, len(self.removed))
        kinds = {"constants": np.zeros(1, int), "waves": bins, "repeated": bins[self.d % bins == 0]}
        worst = dict.fromkeys(kinds, 0.0)
        # in parts that fit in a cache
        for part in range(0, count, size := max(1, 2**17 // self.d)):
            for name, some in kinds.items():
                x = self.waves(random.choice(some, min(size, count - part)), part)
                worst[name] = max(worst[name], float(self.errors(x).max()))
        return worst

    def waves(self, bins: Floats, seed: int = 0) -> Floats:
        """A wave for each of ``bins``, bin 0 a constant, with a random phase and amplitude."""
        random = np.random.default_rng(seed)
        bins = np.asarray(bins)[:, None]
        turns = bins * np.arange(self.d) % self.d / self.d
        phases = np.where(bins > 0, random.random(bins.shape), 0)
        sizes = 1 + random.random(bins.shape)
        return (sizes * np.cos(2 * np.pi * (turns + phases))).astype(REAL)


if __name__ == "__main__":
    length, wanted = map(int, sys.argv[1:])
    for solved_in in (np.float64, np.float32):
        rounded = Rounded(length, solved_in=solved_in)
        print(f"{rounded.grid.describe()}, {solved_in.__name__}: promised {rounded.promise:.2e}")
        for kind, error in rounded.search(wanted).items():
            print(f"{kind}: {error:.2e}")
