"""Recommended ratios: the smallest that do enough, by filtering with them and with smaller ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specgrad_study import diagnosis
from specgrad_study.diagnosis import RATIOS, measure, recommend

from specgrad_kernels import FilterSpec, filter_grads_

SHAPES = {"smooth": (600,), "white": (401,), "other": (30,)}
NAMES = ["smooth", "white"]


def clients(seed, count=4):
    draw = torch.Generator().manual_seed(seed)
    mean = {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in SHAPES.items()}
    for _ in range(count):
        own = {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in SHAPES.items()}
        own["smooth"] = own["smooth"].cumsum(0)
        yield 1.0, {n: mean[n] + own[n] for n in SHAPES}


def removed(given_clients, name, ratio):
    """Share of disagreement and energy of the mean that a ratio removes, by filtering."""
    before = torch.stack([g[name] for _, g in given_clients])
    after = before.clone()
    filter_grads_([after], ratio=ratio, batch_dims=1, backend="torch")

    def spread(x):
        return float((x - x.mean(0)).square().sum())

    signal = float(before.mean(0).square().sum() - after.mean(0).square().sum())
    return 1 - spread(after) / spread(before), signal


@given(st.integers(0, 10**6), st.floats(0.05, 0.95), st.floats(0, 0.9))
@settings(max_examples=40)
def test_the_smallest_ratio_that_does_enough(seed, share, limit):
    given_clients = list(clients(seed))
    whole = sum(float(sum(g[n] for _, g in given_clients).div(4).square().sum()) for n in SHAPES)
    chosen = recommend([measure(given_clients, NAMES)], share=share, rho_limit=limit)
    cost = 0.0
    for choice in chosen.choices:
        if choice.ratio:
            got, signal = removed(given_clients, choice.name, choice.ratio)
            cost += signal / whole
            assert got == pytest.approx(choice.removed, rel=1e-9)
            assert got >= share - 1e-9
            smaller = float(RATIOS[RATIOS.index(_exact(choice.ratio)) - 1])
            assert removed(given_clients, choice.name, smaller)[0] < share + 1e-9
        elif "even ratio" in choice.reason:
            assert removed(given_clients, choice.name, 0.5)[0] < share + 1e-9
    assert cost == pytest.approx(chosen.rho, abs=1e-9)
    assert chosen.rho <= limit


def _exact(ratio):
    from specgrad_kernels.reference import exact_ratio

    return exact_ratio(ratio)


def test_every_snapshot_counts():
    snapshots = [measure(clients(seed), NAMES) for seed in (1, 2)]
    both = recommend(snapshots, share=0.7, rho_limit=0.99).as_table()
    alone = [recommend([s], share=0.7, rho_limit=0.99).as_table() for s in snapshots]
    assert both["smooth"] == max(each["smooth"] for each in alone)


def test_a_tight_limit_goes_to_the_layers_that_gain_most():
    snapshot = measure(clients(0), NAMES)
    free = recommend([snapshot], share=0.4, rho_limit=0.99)
    assert all(free.ratios)
    costs = {choice.name: choice.cost for choice in free.choices}
    tight = recommend([snapshot], share=0.4, rho_limit=costs["smooth"] * 1.0001)
    assert [choice.name for choice in tight.choices if choice.ratio] == ["smooth"]
    left = next(choice for choice in tight.choices if not choice.ratio)
    assert "of the mean gradient" in left.reason


def test_nothing_to_remove():
    same = {"w": torch.arange(100.0)}
    chosen = recommend([measure([(1, same), (1, same)], ["w"])])
    assert chosen.ratios == (0.0,)
    assert chosen.choices[0].reason == "the clients agree about it"


def test_ratios_are_a_filter_argument():
    chosen = recommend([measure(clients(3), NAMES)], rho_limit=0.99)
    grads = [torch.randn(SHAPES[name]) for name in NAMES]
    filter_grads_(grads, ratio=chosen.ratios)
    assert FilterSpec(ratio=chosen.ratios).cutoff(600) > 0
    assert abs(float(grads[0].mean())) < 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0}, "share is 0"),
        ({"share": 1.5}, "share is 1.5"),
        ({"rho_limit": 1}, "rho_limit is 1"),
        ({"names": ["nowhere"]}, "no measured spectrum of 'nowhere'"),
        ({"names": ["other"]}, "no measured spectrum of 'other'"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        recommend([measure(clients(0), NAMES)], **options)
    with pytest.raises(ValueError, match="snapshots is empty"):
        diagnosis.recommend([])
