"""The grid of each method, and how it grows until its best point is bracketed by worse ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specgrad_fl.errors import ConfigError

Point = tuple[float, ...]
# scores of points, higher is better; -inf for one that cannot be used
Objective = Callable[[Sequence[Point]], Sequence[float]]


def rounded(value: float) -> float:
    """Round to six digits.

    >>> rounded(0.1 + 0.2)
    0.3
    """
    return float(f"{value:.6g}")


@dataclass(frozen=True)
class Axis:
    """A setting and its values in ascending order.

    steps: how the axis goes on beyond its ends: ``ratio`` multiplies as between the last two
        values, ``difference`` adds, and halves where that would not stay positive
    high: a value that is never passed, as 0 is on the other side
    whole: whether values are whole numbers

    >>> axis = Axis("lr", (0.01, 0.05, 0.1, 0.15), "difference")
    >>> axis.next(0.15), axis.previous(0.01)
    (0.2, 0.005)
    """

    name: str
    values: tuple[float, ...]
    steps: str = "ratio"
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
            if edge < inner and value <= 0:
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
        return found if 0 < found < value else None


LR = Axis("lr", (0.01, 0.05, 0.1, 0.15), "difference")
# for methods without parameters of their own
FINE_LR = Axis("lr", tuple(rounded(step / 100) for step in range(1, 21)), "difference")

OWN: dict[str, tuple[Axis, ...]] = {
    "fedprox": (Axis("mu", (1e-4, 1e-3, 1e-2, 1e-1, 1.0)),),
    "feddyn": (Axis("alpha", (1e-3, 1e-2, 3e-2, 1e-1, 3e-1)),),
    "fedcm": (Axis("alpha", (0.03, 0.05, 0.1, 0.3, 0.5), high=1.0),),
    "fedsam": (Axis("rho", (0.001, 0.01, 0.05, 0.1, 0.5)),),
    "feddisco": (Axis("a", (0.1, 0.3, 0.5, 0.7, 0.9), "difference"), Axis("b", (0.05, 0.1, 0.2))),
    "fedawa": (
        Axis("server_lr", (1e-3, 1e-2, 1e-1)),
        Axis("server_epochs", (1.0, 10.0), high=100.0, whole=True),
    ),
    "fedlws": (Axis("beta", (0.01, 0.03, 0.05, 0.1, 0.3)),),
}


def axes_of(method: str, given: Sequence[str]) -> list[Axis]:
    """The grid of a method; ``given`` are axes as ``name=value,value`` that replace its own.

    >>> [axis.name for axis in axes_of("fedprox", ["lr=0.1,0.2"])]
    ['lr', 'mu']
    """
    own = OWN.get(method, ())
    axes = {axis.name: axis for axis in (LR if own else FINE_LR, *own)}
    for text in given:
        name, _, values = text.partition("=")
        try:
            numbers = tuple(sorted(float(part) for part in values.split(",")))
            axes[name] = replace(axes.get(name, Axis(name, (0.1, 1.0))), values=numbers)
        except ValueError as error:
            raise ConfigError(
                f"grid is {text!r}; write a setting and its values, such as lr=0.01,0.1 ({error})"
            ) from None
    return list(axes.values())


@dataclass(frozen=True)
class Found:
    """The result of a search.

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
    untried: list[Point] = list(itertools.product(*(axis.values for axis in axes)))
    while untried:
        scores.update(zip(untried, objective(untried), strict=True))
        best = max(scores, key=lambda point: scores[point])
        untried, open_sides = [], []
        if scores[best] == -math.inf:
            open_sides = [axis.name for axis in axes]
            break
        for place, axis in enumerate(grown):
            first, last = axes[place].values[0], axes[place].values[-1]
            for side, value, added in (
                ("below", axis.previous(best[place]), sum(v < first for v in axis.values)),
                ("above", axis.next(best[place]), sum(v > last for v in axis.values)),
            ):
                if value is None or (*best[:place], value, *best[place + 1 :]) in scores:
                    continue
                known = grown[place].values
                if added >= limit and value not in known:
                    open_sides.append(f"{axis.name} {side} {best[place]:g}")
                else:
                    untried.append((*best[:place], value, *best[place + 1 :]))
                    grown[place] = replace(axis, values=tuple(sorted({*known, value})))
    return Found(best, tuple(grown), scores, tuple(open_sides))
