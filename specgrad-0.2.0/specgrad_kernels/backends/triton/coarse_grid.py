"""Choice of the coarse grid of one signal: its cells, its window, its factors."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from specgrad_kernels import design
from specgrad_kernels.design import Array

MAX_HOP = 64
WIDTHS = {False: (8, 12), True: (16,)}
"""Windows that the kernels know, by double precision; none is wider than 16 cells."""
LINE_LOGS = (3, 5, 6, 8, 9, 11)
"""Lengths of the lines that ``filter_grid`` transforms, as powers of two."""
MIDDLE_LOGS = (3, 6)
WIDE_LINE = 11
"""Lines of this length need 256 lanes, shorter ones 64."""
MAX_COLUMNS = 512
MAX_CIRCULANT = 4096

_ALIASING = {False: 4e-8, True: 6e-15}
_AMPLIFICATION = 5.0
_EDGE_STEPS = 400
"""Band edges are rounded up to such parts of a cycle a sample, so that lengths share windows."""
GOOD_COLUMNS = 32
"""Columns up to which three launches beat five."""


@dataclass(frozen=True)
class Window:
    """A window of ``width`` cells of ``hop`` samples.

    ``aliasing`` is the operator norm of what it leaves wrong, over all frequencies of the band;
    ``amplification`` how much undoing it enlarges rounding.
    """

    hop: int
    width: int
    oversampling: float
    aliasing: float
    amplification: float

    def taps(self) -> Array:
        """Its ``hop * width`` taps, with a sum for which the mean's gain is a power of two."""
        taps = design.window_taps(self.hop, self.width, self.oversampling)
        scaled: Array = taps * (math.sqrt(self.hop) / taps.sum())
        return scaled


@lru_cache(maxsize=1024)
def best_window(hop: int, width: int, edge: float) -> Window | None:
    """The shape with the least aliasing up to ``edge``, ``None`` where the grid is too coarse."""
    found = []
    for share in np.linspace(0.9, 1.3, 9):
        oversampling = float(share) / (2 * hop * edge)
        if oversampling >= design.SMALLEST_OVERSAMPLING:
            taps = design.window_taps(hop, width, oversampling)
            aliasing = design.alias_norm(taps, hop, edge)
            enlarged = design.amplification(taps, edge)
            found.append(Window(hop, width, oversampling, aliasing, enlarged))
    return min(found, key=lambda window: window.aliasing, default=None)


@dataclass(frozen=True)
class CoarseGrid:
    """``d = hop * columns * 2**log_middle * 2**log_rows``; no window where ``hop`` is 1.

    One column and no power of two mean that the grid is multiplied by a circulant matrix.
    """

    d: int
    window: Window | None
    columns: int
    log_middle: int
    log_rows: int
    double: bool

    @property
    def hop(self) -> int:
        """Samples of a cell."""
        return self.window.hop if self.window else 1

    @property
    def width(self) -> int:
        """Cells of its window; where that is one sample, any width that the kernels know does."""
        return self.window.width if self.window else WIDTHS[False][0]

    @property
    def cells(self) -> int:
        """Length of the coarse grid."""
        return self.d // self.hop

    @property
    def circulant(self) -> bool:
        """True where the grid is multiplied by its circulant matrix instead of transformed."""
        return self.log_rows == 0

    def error(self, solved_in_double: bool) -> float:
        """Bound of the relative l2 error: aliases of the window, and rounding.

        Pure waves of the band are the worst. Of thousands in float32 none lost more than two
        thirds of what is promised at a ratio of 0.05, and none more than 0.7 at others; float64
        was not searched like that and is promised twice as much.
        """
        terms = self.cells / 16 if self.circulant else self.columns
        aliasing = self.window.aliasing if self.window else 0.0
        enlarged = self.window.amplification if self.window else 1.0
        if solved_in_double and not self.double:
            # Sums over a window are rounded, the more the fewer of them make a cell, sums over
            # columns, and what launches hand on.
            window = 1.75 / math.sqrt(min(self.hop, 8)) if self.window else 0.9
            units = 0.285 + window + 0.14 * enlarged**2 + 0.04 * math.sqrt(self.columns)
        else:
            units = (1.5 + 0.5 * enlarged + 0.35 * math.sqrt(terms)) * (2 if self.double else 1)
        return aliasing + units * design.EPSILON[self.double]

    def describe(self) -> str:
        """The factors, as ``FilterPlan.describe()`` shows them."""
        if self.circulant:
            return f"circulant {self.hop} x {self.cells}"
        factors = [self.hop, self.columns, 1 << self.log_middle, 1 << self.log_rows]
        return "band " + " x ".join(str(factor) for factor in factors if factor > 1)


def split_cells(cells: int) -> tuple[int, int, int, int] | None:
    """Cost, columns, log of the middle and of the rows; some nine columns are best.

    >>> split_cells(4608), split_cells(294912), split_cells(54), split_cells(36871)
    ((9, 9, 0, 9), (23, 9, 6, 9), (13, 1, 0, 0), None)
    """
    options = [(cells // 4, 1, 0, 0)] if cells <= MAX_CIRCULANT else []
    for middle, log in itertools.product((0, *MIDDLE_LOGS), LINE_LOGS):
        columns, left = divmod(cells, 1 << (middle + log))
        if left == 0 and columns <= MAX_COLUMNS and not (middle and log == WIDE_LINE):
            # The middle costs two launches more, and the exchange of 64 points.
            cost = max(columns, 14 - columns) + (8 + middle if middle else 0)
            options.append((cost, columns, middle, log))
    # What three launches do well is not left to five.
    well = [option for option in options if option[0] <= GOOD_COLUMNS and option[2] == 0]
    return min(well or options, default=None)


@lru_cache(maxsize=4096)
def plan_grid(d: int, cutoff: int, double: bool) -> CoarseGrid | None:
    """The coarsest accurate grid that is cheap to solve, ``None`` where there is none.

    >>> plan_grid(36864, 921, double=False).describe()
    'band 8 x 9 x 512'
    >>> plan_grid(433, 10, double=False).describe()
    'circulant 1 x 433'
    >>> plan_grid(36871, 921, double=False) is None        # a prime has no grid
    True
    """
    edge = max(math.ceil((cutoff - 1) * _EDGE_STEPS / d), 1) / _EDGE_STEPS
    options: list[tuple[int, CoarseGrid]] = []
    hops = [hop for hop in range(2, min(MAX_HOP, d) + 1) if d % hop == 0 and 4 * hop * edge <= 1]
    # A power of two fills the kernels' cells.
    hops.sort(key=lambda hop: (hop & (hop - 1) == 0, hop), reverse=True)
    for width in WIDTHS[double]:
        for hop in hops:
            split = split_cells(d // hop)
            window = best_window(hop, width, edge)
            if split is None or window is None or d // hop < 2 * width:
                continue
            if window.aliasing > _ALIASING[double] or window.amplification > _AMPLIFICATION:
                continue
            grid = CoarseGrid(d, window, *split[1:], double)
            if split[0] <= GOOD_COLUMNS:
                return grid
            options.append((split[0], grid))
    split = split_cells(d)
    if split is not None:
        options.append((2 * split[0], CoarseGrid(d, None, *split[1:], double)))
    return min(options, key=lambda option: option[0])[1] if options else None
