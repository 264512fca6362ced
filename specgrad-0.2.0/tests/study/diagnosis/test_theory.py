"""Bounds in closed form, gradient noise, cosines and CKA."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specgrad_study import diagnosis
from specgrad_study.diagnosis import Cosines, Noise, debiased_cka, hsic1

positive = st.floats(1e-3, 1e3)
bounds = st.fixed_dictionaries(
    {
        "gap": positive,
        "rho": st.floats(0, 0.95),
        "delta_high": positive,
        "rounds": st.integers(64, 2000),
        "steps": st.integers(1, 100),
    }
)


@given(bounds, positive, positive, positive)
def test_the_theorem_is_its_formula(given_, local, averaged, smoothness):
    bound = diagnosis.theorem_bound(**given_, noise=Noise(local, averaged))
    T, E, rho = given_["rounds"], given_["steps"], given_["rho"]
    expected = (
        8 * smoothness * given_["gap"] / ((1 - rho) * math.sqrt(T))
        + (36 * given_["delta_high"] + 12 * local) / ((1 - rho) * T)
        + 8 * averaged / (E * (1 - rho) * math.sqrt(T))
    )
    assert bound.at(smoothness) == pytest.approx(expected, rel=1e-12)


@given(bounds, positive, positive, st.integers(2, 200), st.data())
def test_the_corollary_is_its_formula(given_, local, smoothness, clients, data):
    active = data.draw(st.integers(1, clients))
    noise = Noise(local, local / clients)
    bound = diagnosis.partial_bound(**given_, noise=noise, clients=clients, active=active)
    T, E, rho = given_["rounds"], given_["steps"], given_["rho"]
    q = (clients - active) / (active * (clients - 1))
    expected = (
        8 * smoothness * given_["gap"] / ((1 - rho) * math.sqrt(T))
        + (36 * given_["delta_high"] + 12 * local) / ((1 - rho) * T)
        + 8 / ((1 - rho) * math.sqrt(T)) * (q * given_["delta_high"] + local / (active * E))
    )
    assert bound.at(smoothness) == pytest.approx(expected, rel=1e-12)


@given(bounds, st.lists(positive, min_size=2, max_size=50), positive)
def test_the_bounds_coincide_when_all_clients_take_part(given_, sigmas, smoothness):
    clients = len(sigmas)
    noise = diagnosis.combined_noise([1.0] * clients, sigmas)
    full = diagnosis.theorem_bound(**given_, noise=noise)
    drawn = diagnosis.partial_bound(**given_, noise=noise, clients=clients, active=clients)
    assert drawn.at(smoothness) == pytest.approx(full.at(smoothness), rel=1e-12)


def test_sampling_factor():
    assert diagnosis.sampling_factor(100, 10) == 1 / 11
    assert diagnosis.sampling_factor(7, 7) == 0
    assert diagnosis.sampling_factor(2, 1) == 1


def test_sampling_factor_is_the_variance_of_a_drawn_mean():
    """Over all ways to draw 3 of 7, the squared error of their mean is q_M times the variance."""
    values = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    variance = float((values - values.mean(0)).square().sum(1).mean())
    errors = [
        float((values[list(drawn)].mean(0) - values.mean(0)).square().sum())
        for drawn in itertools.combinations(range(7), 3)
    ]
    expected = diagnosis.sampling_factor(7, 3) * variance
    assert sum(errors) / len(errors) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rho": 1.0}, "rho is 1.0"),
        ({"rounds": 63}, "rounds is 63"),
        ({"steps": 0}, "steps is 0"),
        ({"active": 11}, "active 11"),
        ({"clients": 1, "active": 1}, "clients is 1"),
    ],
)
def test_refused_bounds(change, message):
    usual = {
        "gap": 1.0, "rho": 0.1, "delta_high": 1.0, "noise": Noise(1.0, 1.0), "rounds": 64,
        "steps": 1, "clients": 10, "active": 5,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        diagnosis.partial_bound(**{**usual, **change})


@pytest.mark.parametrize("of_mean", [False, True])
def test_noise_is_unbiased(of_mean):
    """Batches of known variance 2 in 50 dimensions, around the true mean or their own."""
    draw = torch.Generator().manual_seed(0)
    estimates = []
    for _ in range(200):
        batches = 3 + math.sqrt(2) * torch.randn(8, 50, generator=draw, dtype=torch.float64)
        full = batches.mean(0) if of_mean else torch.full((50,), 3.0, dtype=torch.float64)
        rows = ({"w": row} for row in batches)
        estimates.append(diagnosis.noise({"w": full}, rows, full_is_their_mean=of_mean))
    assert sum(estimates) / 200 == pytest.approx(100, rel=0.02)


def test_noise_needs_batches():
    with pytest.raises(ValueError, match="give at least 1"):
        diagnosis.noise({}, [])
    with pytest.raises(ValueError, match="give at least 2"):
        diagnosis.noise({}, [{}], full_is_their_mean=True)


@given(st.integers(0, 10**6), st.integers(2, 8))
def test_mean_cosine(seed, clients):
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(clients, 30, generator=draw) + 0.5
    meter = Cosines()
    for row in rows:
        meter.add({"a": row[:10].view(2, 5), "b": row[10:]})
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    matrix = unit @ unit.T
    expected = (matrix.sum() - clients) / (clients * (clients - 1))
    assert meter.mean() == pytest.approx(float(expected), abs=1e-6)


def test_refused_cosines():
    meter = Cosines()
    with pytest.raises(ValueError, match="is zero"):
        meter.add({"w": torch.zeros(3)})
    meter.add({"w": torch.ones(3)})
    with pytest.raises(ValueError, match="has others"):
        meter.add({"w": torch.ones(4)})
    with pytest.raises(ValueError, match="needs two"):
        meter.mean()


def features(seed, n=100, p=60):
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain_cka(x, y):
    """The form without a correction."""
    x, y = x - x.mean(0), y - y.mean(0)
    norms = torch.linalg.matrix_norm(x.T @ x) * torch.linalg.matrix_norm(y.T @ y)
    return float(torch.linalg.matrix_norm(y.T @ x) ** 2 / norms)


def test_independent_features_are_not_similar():
    """More features than samples make the plain form see what is not there."""
    plain, debiased = [], []
    for seed in range(10):
        x, y = features(2 * seed), features(2 * seed + 1)
        plain.append(plain_cka(x, y))
        debiased.append(float(debiased_cka([x, y], batch=100)[0, 1]))
    assert 0.3 < sum(plain) / 10 < 0.45
    assert abs(sum(debiased) / 10) < 0.01


@given(st.integers(0, 10**6), st.floats(0.01, 100), st.floats(-50, 50))
@settings(max_examples=25)
def test_rotation_scale_and_shift_do_not_matter(seed, scale, shift):
    x, y = features(seed, p=20), features(seed, p=20) + features(seed + 1, p=20)
    rotation = torch.linalg.qr(features(seed + 2, 20, 20))[0]
    moved = scale * (x @ rotation) + shift
    before, after = debiased_cka([x, y], 25), debiased_cka([moved, y], 25)
    torch.testing.assert_close(after, before, rtol=1e-7, atol=1e-9)
    assert float(debiased_cka([x, moved])[0, 1]) == pytest.approx(1, abs=1e-9)


def test_hsic_is_its_definition():
    """The sum over quadruples of different samples, of which the formula is the closed form."""
    n = 6
    k, l = (f @ f.T for f in (features(0, n, 3), features(1, n, 4)))  # noqa: E741
    total, count = 0.0, 0
    for i, j, q, r in itertools.permutations(range(n), 4):
        total += float(k[i, j] * (l[i, j] + l[q, r] - 2 * l[i, q]))
        count += 1
    assert hsic1(k, l) == pytest.approx(total / count, rel=1e-10)


def test_minibatches_are_summed_before_the_ratio():
    x, y = features(0), features(0) + features(1)
    kernels = [
        [(f[s : s + 40] @ f[s : s + 40].T) for s in (0, 40)] for f in (x, y)
    ]  # the last 20 make no batch

    def total(a, b):
        return sum(hsic1(*pair) for pair in zip(kernels[a], kernels[b], strict=True))

    expected = total(0, 1) / math.sqrt(total(0, 0) * total(1, 1))
    assert float(debiased_cka([x, y], 40)[0, 1]) == pytest.approx(expected, rel=1e-9)


def test_cka_refusals():
    with pytest.raises(ValueError, match="needs 4"):
        debiased_cka([features(0, 3), features(1, 3)])
    with pytest.raises(ValueError, match="same samples"):
        debiased_cka([features(0, 10), features(1, 11)])


def test_features_that_do_not_vary_are_similar_to_none():
    constant = debiased_cka([torch.ones(50, 3), features(0, 50)])
    assert math.isnan(constant[0, 1])
