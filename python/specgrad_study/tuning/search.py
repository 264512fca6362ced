"""A grid that grows until its best point is bracketed by worse ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Point = tuple[float, ...]
# scores of points, higher is better; -inf for one that cannot be used
Objective = Callable[[Sequence[Point]], Sequence[float]]


def rounded(value: float) -> float:
    """Six digits: what a person would have written.

    >>> rounded(0.1 + 0.2)
    0.3
    """
    return float(f"{value:.6g}")


@dataclass(frozen=True)
class Axis:
    """A setting and its values in ascending order.

    steps: how the axis goes on beyond its ends: ``ratio`` multiplies as between the last two
        values, ``difference`` adds, and halves where that would not stay positive
    low, high: values that are never passed
    whole: whether values are whole numbers

    >>> axis = Axis("lr", (0.01, 0.05, 0.1, 0.15), "difference")
    >>> axis.next(0.15), axis.previous(0.01)
    (0.2, 0.005)
    """

    name: str
    values: tuple[float, ...]
    steps: str = "ratio"
    low: float = 0.0
    high: float = math.inf
    whole: bool = False

    def __post_init__(self) -> None:
        if len(set(self.values)) < 2 or list(self.values) != sorted(set(self.values)):
            raise ValueError(
                f"grid of {self.name} is {self.values}; give at least two values, ascending"
            )

    def _beyond(self, edge: float, inner: float) -> float:
        if self.steps == "ratio" and inner > 0 and edge > 0:
            value = edge * (edge / inner)
        else:
            value = edge + (edge - inner)
            if edge < inner and value <= self.low:
                value = edge / 2
        return float(round(value)) if self.whole else rounded(value)

    def next(self, value: float) -> float | None:
        """The value after this one; ``None`` at the end of the setting's range."""
        later = [v for v in self.values if v > value]
        if later:
            return later[0]
        found = self._beyond(self.values[-1], self.values[-2])
        return found if value < found <= self.high else None

    def previous(self, value: float) -> float | None:
        """The value before this one; ``None`` at the end of the setting's range."""
        earlier = [v for v in self.values if v < value]
        if earlier:
            return earlier[-1]
        found = self._beyond(self.values[0], self.values[1])
        return found if self.low < found < value else None

    def with_value(self, value: float) -> Axis:
        """The axis with a value more."""
        values = tuple(sorted({*self.values, value}))
        return Axis(self.name, values, self.steps, self.low, self.high, self.whole)


@dataclass(frozen=True)
class Found:
    """The end of a search.

    axes: as they have grown; scores: of every point tried
    open_sides: settings and directions in which the limit stopped the search
    """

    best: Point
    axes: tuple[Axis, ...]
    scores: dict[Point, float]
    open_sides: tuple[str, ...]

    @property
    def bracketed(self) -> bool:
        return not self.open_sides


def search(axes: Sequence[Axis], objective: Objective, limit: int) -> Found:
    """The best point of the grid, with no better neighbour on any side.

    limit: values that may be added on each side of each axis

    >>> peak = search([Axis("x", (1.0, 2.0), "difference")], lambda ps: [-abs(p[0] - 5) for p in ps], 9)
    >>> peak.best, peak.bracketed
    ((5.0,), True)
    """  # noqa: E501
    grown = list(axes)
    scores: dict[Point, float] = {}

    def score(points: Sequence[Point]) -> None:
        scores.update(zip(points, objective(points), strict=True))

    score(list(itertools.product(*(axis.values for axis in axes))))
    while True:
        best = max(scores, key=lambda point: scores[point])
        if scores[best] == -math.inf:
            return Found(best, tuple(grown), scores, tuple(axis.name for axis in axes))
        untried: list[Point] = []
        open_sides: list[str] = []
        for place, axis in enumerate(grown):
            for side, value in (
                ("below", axis.previous(best[place])),
                ("above", axis.next(best[place])),
            ):
                if value is None:
                    continue
                point = (*best[:place], value, *best[place + 1 :])
                if point in scores:
                    continue
                if _added(axes[place], axis, side) >= limit and value not in axis.values:
                    open_sides.append(f"{axis.name} {side} {best[place]:g}")
                    continue
                untried.append(point)
                grown[place] = axis = axis.with_value(value)
        if not untried:
            return Found(best, tuple(grown), scores, tuple(open_sides))
        score(untried)


def _added(first: Axis, grown: Axis, side: str) -> int:
    if side == "below":
        return sum(value < first.values[0] for value in grown.values)
    return sum(value > first.values[-1] for value in grown.values)
