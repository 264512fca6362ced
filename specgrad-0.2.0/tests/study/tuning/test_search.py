"""The growing grid, on objectives whose best point is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specgrad_study.tuning.search import Axis, Found, search

GRID = (Axis("lr", (0.01, 0.05, 0.1, 0.15), "difference"), Axis("mu", (1e-3, 1e-2, 1e-1)))


def neighbours(found: Found) -> list[tuple[float, ...]]:
    """The points beside the best one on the grown grid."""
    points = []
    for place, axis in enumerate(found.axes):
        for value in (axis.previous(found.best[place]), axis.next(found.best[place])):
            if value is not None:
                points.append((*found.best[:place], value, *found.best[place + 1 :]))
    return points


def hill(lr: float, mu: float):
    """One peak, at these settings; steps are compared by their logarithm."""
    return lambda points: [
        -abs(math.log(x / lr)) - 0.5 * abs(math.log10(y / mu)) for x, y in points
    ]


@given(st.floats(0.004, 0.4), st.floats(1e-6, 1e2))
def test_the_best_is_bracketed_by_no_better_neighbours(lr, mu):
    found = search(GRID, hill(lr, mu), limit=12)
    assert found.bracketed
    beside = neighbours(found)
    assert len(beside) == 4
    assert all(found.scores[point] <= found.scores[found.best] for point in beside)


@given(st.floats(0.004, 0.4), st.floats(1e-6, 1e2))
def test_nothing_on_the_grown_grid_is_better(lr, mu):
    """One peak: the walk ends at the best of all points of its lattice, tried or not."""
    objective = hill(lr, mu)
    found = search(GRID, objective, limit=12)
    lattice = [(x, y) for x in found.axes[0].values for y in found.axes[1].values]
    assert max(objective(lattice)) == found.scores[found.best]


@given(st.lists(st.floats(-1, 1), min_size=200, max_size=200), st.integers(0, 5))
def test_any_objective_ends_within_the_limit(values, limit):
    """Also one with many peaks, and each point is tried once."""
    tried = []

    def objective(points):
        tried.extend(points)
        return [values[hash(point) % len(values)] for point in points]

    found = search(GRID, objective, limit)
    assert len(tried) == len(set(tried)) == len(found.scores)
    for first, grown in zip(GRID, found.axes, strict=True):
        assert sum(v < first.values[0] for v in grown.values) <= limit
        assert sum(v > first.values[-1] for v in grown.values) <= limit
    best = found.scores[found.best]
    assert best == max(found.scores.values())
    known = [found.scores[p] for p in neighbours(found) if p in found.scores]
    assert all(score <= best for score in known)
    assert found.bracketed == (len(known) == len(neighbours(found)))


def test_the_limit_leaves_a_side_open_and_says_so():
    found = search([Axis("lr", (0.1, 0.2), "difference")], lambda ps: [p[0] for p in ps], 2)
    assert found.best == (0.4,)
    assert found.open_sides == ("lr above 0.4",)
    assert not found.bracketed


def test_the_range_of_a_setting_is_no_open_side():
    axis = Axis("alpha", (0.25, 0.5), high=1.0)
    found = search([axis], lambda points: [p[0] for p in points], 6)
    assert found.best == (1.0,)
    assert found.bracketed


def test_diverged_points_lose():
    found = search(
        [Axis("lr", (0.1, 0.2, 0.3), "difference")],
        lambda points: [-math.inf if p[0] > 0.25 else p[0] for p in points],
        3,
    )
    assert found.best == (0.2,)
    assert found.bracketed


@pytest.mark.parametrize("values", [(0.1,), (0.2, 0.1), (0.1, 0.1)])
def test_a_grid_needs_two_ascending_values(values):
    with pytest.raises(ValueError, match="at least two values, ascending"):
        Axis("lr", values)
