"""The rule that judges the paper's claims, against cases decided by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specgrad_study.paper import claims
from specgrad_study.paper.claims import CONTRADICTS, OUT_OF_REACH, SUPPORTS, Claim, Noise, judge

BETTER = Claim("a is better", (claims.above("a", "b"),))
ALIKE = Claim("a is like b", (claims.close("a", "b", 3),))


def table(**rows: list[float]):
    return {(row, "x"): dict(enumerate(values)) for row, values in rows.items()}


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([60.0, 62.0], [50.0, 52.0], SUPPORTS),
        ([50.0, 52.0], [60.0, 62.0], CONTRADICTS),
        ([51.0, 52.0], [50.0, 52.0], OUT_OF_REACH),
    ],
)
def test_a_difference_is_weighed_against_the_noise(a, b, verdict):
    assert judge(BETTER, "x", table(a=a, b=b), spread=Noise(1.0, 50)).word == verdict


def test_the_border_of_the_noise():
    """t s sqrt(2 / n) with t = 2.45 for six degrees of freedom: 3.46 for one seed and s = 1."""
    noise = Noise(1.0, 6)
    assert judge(BETTER, "x", table(a=[53.5], b=[50.0]), noise).word == SUPPORTS
    assert judge(BETTER, "x", table(a=[53.4], b=[50.0]), noise).word == OUT_OF_REACH


def test_a_noise_that_rests_on_little_decides_little():
    values = table(a=[60.0], b=[50.0])
    assert judge(BETTER, "x", values, Noise(1.0, 1)).word == OUT_OF_REACH
    assert judge(BETTER, "x", values, Noise(1.0, 2)).word == SUPPORTS


@pytest.mark.parametrize("freedom", [*range(1, 13), 15, 20, 30, 60, 120])
def test_students_points(freedom):
    stats = pytest.importorskip("scipy.stats")
    assert Noise(1.0, freedom).t == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.006)


def test_a_margin_has_two_sides():
    assert judge(ALIKE, "x", table(a=[51.0], b=[50.0]), Noise(0.1, 50)).word == SUPPORTS
    assert judge(ALIKE, "x", table(a=[45.0], b=[50.0]), Noise(0.1, 50)).word == CONTRADICTS
    assert judge(ALIKE, "x", table(a=[53.0], b=[50.0]), Noise(0.1, 50)).word == OUT_OF_REACH


def test_only_shared_seeds_count():
    values = {("a", "x"): {0: 50.0, 1: 90.0}, ("b", "x"): {0: 60.0}}
    verdict = judge(BETTER, "x", values, Noise(1.0, 50))
    assert verdict.word == CONTRADICTS
    assert "-10.00" in verdict.because
    assert "n = 1" in verdict.because


def test_without_a_result_or_a_spread_nothing_is_decided():
    missing = judge(BETTER, "x", table(a=[50.0]), Noise(1.0, 50))
    assert (missing.word, missing.because) == (OUT_OF_REACH, "no result for b")
    unknown = judge(BETTER, "x", table(a=[99.0], b=[1.0]), None)
    assert unknown.word == OUT_OF_REACH
    assert "too few seeds" in unknown.because


def test_one_contrast_against_is_enough():
    both = Claim("a beats b and c", (claims.above("a", "b"), claims.above("a", "c")))
    verdict = judge(both, "x", table(a=[50.0], b=[10.0], c=[90.0]), Noise(1.0, 50))
    assert verdict.word == CONTRADICTS
    assert "[c]" in verdict.because


def test_gains_are_compared():
    claim = Claim("more at 0.1", (claims.gains_more("f1", "n1", "f2", "n2"),))
    rows = table(f1=[60.0], n1=[40.0], f2=[80.0], n2=[75.0])
    assert judge(claim, "x", rows, Noise(1.0, 50)).word == SUPPORTS
    assert judge(claim, "x", rows, Noise(4.0, 50)).word == OUT_OF_REACH


accuracy = st.floats(0, 100)


@given(st.lists(st.tuples(accuracy, accuracy), min_size=1, max_size=5), st.floats(0.01, 5))
def test_swapping_the_rows_turns_the_verdict(pairs, spread):
    values = table(a=[p[0] for p in pairs], b=[p[1] for p in pairs])
    other = Claim("b is better", (claims.above("b", "a"),))
    noise = Noise(spread, 6)
    one, two = judge(BETTER, "x", values, noise), judge(other, "x", values, noise)
    turned = {SUPPORTS: CONTRADICTS, CONTRADICTS: SUPPORTS, OUT_OF_REACH: OUT_OF_REACH}
    assert two.word == turned[one.word]


cells = st.lists(st.lists(accuracy, min_size=3, max_size=3), min_size=2, max_size=5)


def block(rows: list[list[float]]) -> list[dict[int, float]]:
    return [dict(enumerate(row)) for row in rows]


@given(cells, st.lists(st.floats(-20, 20), min_size=3, max_size=3))
def test_what_a_seed_does_to_all_cells_is_no_noise(rows, effects):
    shifted = [[v + e for v, e in zip(row, effects, strict=True)] for row in rows]
    before, after = claims.noise([block(rows)]), claims.noise([block(shifted)])
    assert after.deviation == pytest.approx(before.deviation, abs=1e-6)
    assert after.freedom == before.freedom == (len(rows) - 1) * 2


@given(cells, st.lists(st.floats(-20, 20), min_size=5, max_size=5))
def test_nor_is_what_a_cell_does_at_all_seeds(rows, means):
    shifted = [[v + mean for v in row] for row, mean in zip(rows, means, strict=False)]
    before, after = claims.noise([block(rows)]), claims.noise([block(shifted)])
    assert after.deviation == pytest.approx(before.deviation, abs=1e-6)
    assert after.freedom == before.freedom == (len(rows) - 1) * 2


def test_two_cells_and_two_seeds_by_hand():
    """Interaction of a 2 x 2 table: (a - b - c + d) / 2 with one degree of freedom."""
    found = claims.noise([block([[1.0, 2.0], [3.0, 10.0]])])
    assert found.deviation == pytest.approx(abs(1 - 2 - 3 + 10) / 2)
    assert found.freedom == 1


def test_the_noise_of_a_large_table_is_found():
    generator = np.random.default_rng(0)
    table = 3 * generator.normal(size=(200, 4)) + 10 * generator.normal(size=4)
    assert claims.noise([block(table.tolist())]).deviation == pytest.approx(3, rel=0.1)


def test_single_values_and_single_cells_tell_nothing():
    assert claims.noise([[{0: 1.0}, {0: 2.0}]]) is None
    assert claims.noise([[{0: 1.0, 1: 2.0}]]) is None
    assert claims.noise([]) is None
    # a cell with one seed neither helps nor disturbs
    rows = block([[1.0, 2.0], [3.0, 10.0]])
    assert claims.noise([[*rows, {0: 99.0}]]) == claims.noise([rows])
