"""The rule that judges claims, against cases decided by hand."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specgrad_study.paper import claims, statements
from specgrad_study.paper.claims import (
    CONTRADICTS,
    MISSING,
    PRELIMINARY,
    SUPPORTS,
    UNDECIDED,
    Claim,
    Interval,
    judge,
)
from specgrad_study.paper.registry import EXPERIMENTS

BETTER = Claim("a is better", "here", (claims.above("a", "b"),))
ALIKE = Claim("a is like b", "here", (claims.close("a", "b", 3),))


def table(**rows: list[float]):
    return {(row, "x"): dict(enumerate(values)) for row, values in rows.items()}


def test_the_interval_by_hand():
    """Differences 1, 2, 3: mean 2, deviation 1, t = 4.3027 with two degrees of freedom."""
    found = Interval.of({0: 1.0, 1: 2.0, 2: 3.0})
    assert found.mean == 2
    assert found.half == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert Interval.of({0: 1.0, 4: 3.0}).half == pytest.approx(12.7062, rel=1e-5)
    assert Interval.of({0: 1.0}).half is None


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([60.0, 62.0, 61.0], [50.0, 52.0, 50.5], SUPPORTS),
        ([50.0, 52.0, 50.5], [60.0, 62.0, 61.0], CONTRADICTS),
        ([51.0, 52.0, 50.0], [50.0, 52.0, 51.0], UNDECIDED),
        ([60.0, 62.0], [50.0, 52.0], PRELIMINARY),
        ([60.0], [50.0], PRELIMINARY),
        ([60.0, 62.0, 61.0], [], MISSING),
    ],
)
def test_a_difference_is_weighed_against_its_interval(a, b, verdict):
    assert judge(BETTER, "x", table(a=a, b=b)).word == verdict


def test_a_preliminary_verdict_says_where_it_points_and_does_not_count():
    favour = judge(BETTER, "x", table(a=[60.0, 61.0], b=[50.0, 50.0]))
    against = judge(BETTER, "x", table(a=[50.0], b=[60.0]))
    assert (favour.text, against.text) == ("preliminary, in favour", "preliminary, against")
    assert (favour.seeds, against.seeds) == (2, 1)
    assert not favour.counted
    assert not against.counted


def test_what_seeds_share_cancels():
    """Seeds differ by twenty points, rows by one: decided, since differences are paired."""
    values = table(a=[51.0, 31.1, 40.9], b=[50.0, 30.0, 40.0])
    assert judge(BETTER, "x", values).word == SUPPORTS


def test_only_shared_seeds_count():
    values = {("a", "x"): {0: 50.0, 1: 90.0}, ("b", "x"): {0: 60.0, 2: 1.0}}
    verdict = judge(BETTER, "x", values)
    assert verdict.findings[0].differences == {0: -10.0}
    assert verdict.text == "preliminary, against"


def test_a_margin_has_two_sides():
    alike = table(a=[51.0, 50.9, 51.1], b=[50.0, 50.0, 50.0])
    assert judge(ALIKE, "x", alike).word == SUPPORTS
    below = table(a=[45.0, 45.1, 44.9], b=[50.0, 50.0, 50.0])
    assert judge(ALIKE, "x", below).word == CONTRADICTS
    above = table(a=[55.0, 55.1, 54.9], b=[50.0, 50.0, 50.0])
    assert judge(ALIKE, "x", above).word == CONTRADICTS
    across = table(a=[53.0, 53.1, 52.9], b=[50.0, 50.0, 50.0])
    assert judge(ALIKE, "x", across).word == UNDECIDED
    wide = table(a=[70.0, 50.0, 30.0], b=[50.0, 50.0, 50.0])
    assert judge(ALIKE, "x", wide).word == UNDECIDED


def test_a_number_to_exceed():
    claim = Claim("more than ten", "here", (claims.more_than("a", 10),))
    assert judge(claim, "x", table(a=[50.0, 51.0, 52.0])).word == SUPPORTS
    assert judge(claim, "x", table(a=[5.0, 5.1, 5.2])).word == CONTRADICTS
    assert judge(claim, "x", table(a=[9.0, 10.0, 11.5])).word == UNDECIDED


def test_one_contrast_against_is_enough_and_all_must_be_in_favour():
    both = Claim("a beats b and c", "here", (claims.above("a", "b"), claims.above("a", "c")))
    mixed = table(a=[50.0, 50.0, 50.1], b=[10.0, 10.1, 10.0], c=[90.0, 90.1, 90.0])
    verdict = judge(both, "x", mixed)
    assert verdict.word == CONTRADICTS
    assert "[c]" in str(verdict.decisive)
    partly = table(a=[50.0, 50.0, 50.1], b=[10.0, 10.1, 10.0], c=[40.0])
    assert judge(both, "x", partly).word == PRELIMINARY
    assert judge(both, "x", table(a=[50.0] * 3, b=[10.0] * 3)).word == MISSING


def test_a_contradiction_among_many_differences_needs_more():
    """The interval of -1 at level 0.95 excludes zero, the one at 1 - 0.05 / 10 does not."""
    rows = {f"r{n}": [10.0, 10.1, 10.2] for n in range(9)}
    values = table(a=[50.0, 50.0, 50.0], z=[51.0, 50.7, 51.3], **rows)
    alone = Claim("a beats z", "here", (claims.above("a", "z"),))
    many = Claim("a beats all", "", tuple(claims.above("a", row) for row in (*rows, "z")))
    assert judge(alone, "x", values).word == CONTRADICTS
    assert judge(many, "x", values).word == UNDECIDED


def test_gains_are_compared():
    claim = Claim("more at 0.1", "here", (claims.gains_more("f1", "n1", "f2", "n2"),))
    rows = table(f1=[60.0, 61, 62], n1=[40.0, 40, 41], f2=[80.0, 80, 81], n2=[75.0, 74, 75])
    assert judge(claim, "x", rows).word == SUPPORTS


accuracy = st.floats(0, 100)


@given(st.lists(st.tuples(accuracy, accuracy), min_size=1, max_size=5))
def test_swapping_the_rows_turns_the_verdict(pairs):
    values = table(a=[p[0] for p in pairs], b=[p[1] for p in pairs])
    other = Claim("b is better", "here", (claims.above("b", "a"),))
    one, two = judge(BETTER, "x", values), judge(other, "x", values)
    turned = {SUPPORTS: CONTRADICTS, CONTRADICTS: SUPPORTS}
    assert two.word == turned.get(one.word, one.word)


@given(st.lists(accuracy, min_size=3, max_size=6), st.lists(accuracy, min_size=6, max_size=6))
def test_an_effect_of_the_seed_alone_changes_nothing(rows, effects):
    plain = table(a=rows, b=[10.0] * len(rows))
    moved = table(
        a=[v + e for v, e in zip(rows, effects, strict=False)],
        b=[10.0 + e for e in effects[: len(rows)]],
    )
    before, after = (
        judge(BETTER, "x", values).findings[0].differences for values in (plain, moved)
    )
    assert after == pytest.approx(before, abs=1e-9)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_claims_say_where_they_are_from_and_declare_margins(name):
    for claim in EXPERIMENTS[name].claims:
        assert claim.said.startswith("Section") or claim.said == ""
        assert bool(claim.margin) == (
            any(c.margin is not None for c in claim.contrasts)
            or any(c.least not in (0, 10) for c in claim.contrasts)
        )
    texts = [claim.text for claim in EXPERIMENTS[name].claims]
    assert len(texts) == len(set(texts))


def test_a_claim_about_one_data_set_is_not_judged_on_another():
    about = {claim.text: claim.columns for claim in EXPERIMENTS["ratio"].claims}
    for text, columns in about.items():
        named = "CIFAR-100" if "CIFAR-100" in text else "CIFAR-10"
        assert columns == (named,)


def stored_values(stored: dict) -> statements.Values:
    return {
        (name, each["row"], each["column"]): {int(s): v for s, v in each["values"].items()}
        for name, held in stored["experiments"].items()
        for each in held["values"]
    }


def test_statements_of_the_stored_report_follow_from_its_values():
    path = Path(__file__).parents[3] / "docs" / "results" / "paper" / "results.json"
    stored = json.loads(path.read_text("utf-8"))
    again = statements.corrected(stored_values(stored))
    assert len(again) == len(statements.STATEMENTS), "a statement without three seeds"
    told = [(e["statement"], e["survives"], e["holm_p"]) for e in stored["statements"]]
    assert [(e.statement.text, e.survives) for e in again] == [each[:2] for each in told]
    assert [e.p for e in again] == pytest.approx([each[2] for each in told], abs=2e-6)
    report = path.with_name("report.md").read_text("utf-8")
    survivors = sum(each[1] for each in told)
    assert f"{survivors} survive at 5 % for all of them together" in report
    page = path.parents[2].joinpath("mechanism.md").read_text("utf-8")
    assert f"Of our {len(told)} positive statements {survivors} survive" in page


def test_holm_by_its_definition():
    """The k-th smallest of n survives where all smaller ones do and it is below 0.05 / (n - k)."""
    rng = random.Random(0)
    for _ in range(50):
        found = [rng.random() ** 4 for _ in range(rng.randint(1, 12))]
        survivors = set()
        for rank, index in enumerate(sorted(range(len(found)), key=found.__getitem__)):
            if found[index] > 0.05 / (len(found) - rank):
                break
            survivors.add(index)
        adjusted = statements.holm(found)
        assert {i for i, p in enumerate(adjusted) if p <= 0.05} == survivors


def test_a_difference_the_wrong_way_does_not_survive():
    found = statements.Corrected(statements.Statement("x", ()), {0: -1.0, 1: -1.1}, 0.001)
    assert not found.survives
