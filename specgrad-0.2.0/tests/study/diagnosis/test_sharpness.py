"""The largest eigenvalue of filter times Hessian."""

from __future__ import annotations

import pytest
import specgrad_data
import torch
import torch.nn.functional as F
from specgrad_fl import prepare
from specgrad_fl.errors import ConfigError
from specgrad_fl.vectors import FlatModel
from specgrad_study.diagnosis import collect
from specgrad_study.diagnosis.collect import Collector, Request
from specgrad_study.diagnosis.sharpness import UNFILTERED, largest_eigenvalue, sharpness
from torch import nn
from torch.func import functional_call

from specgrad_kernels import FilterPlan, FilterSpec, filter_grads_


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("method", ["centralize", "gaussian"])
def test_of_a_filtered_quadratic(seed, method):
    """Against all eigenvalues of the dense product; a Gaussian detrend is no projection."""
    generator = torch.Generator().manual_seed(seed)
    size, shape = 60, (4, 5, 3)
    half = torch.randn(size, size, generator=generator, dtype=torch.float64)
    hessian = half + half.T

    def filtered(vectors):
        grads = [vector.reshape(shape).clone() for vector in vectors]
        filter_grads_(grads, method=method)
        return torch.stack([grad.reshape(-1) for grad in grads])

    expected = torch.linalg.eigvals(filtered(hessian).T).real.max()
    start = torch.randn(size, generator=generator, dtype=torch.float64)
    found = largest_eigenvalue(lambda v: filtered((hessian @ v)[None])[0], start, steps=size)
    assert found == pytest.approx(float(expected), rel=1e-6)


def test_a_map_that_ends_early():
    """Rank one: after two vectors nothing is left, and no third is sought."""
    direction = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
    calls = []

    def product(vector):
        calls.append(vector)
        return torch.dot(direction, vector) * direction

    assert largest_eigenvalue(product, torch.ones(3, dtype=torch.float64)) == pytest.approx(9)
    assert len(calls) == 2


def test_a_gradient_that_is_zero_is_refused():
    with pytest.raises(ValueError, match="the gradient is zero"):
        largest_eigenvalue(lambda vector: vector, torch.zeros(3))


def test_of_a_small_network_by_its_whole_hessian():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)
    )
    x, y = torch.randn(20, 2, 4, 4).abs(), torch.randint(3, (20,))
    flat = FlatModel(model)
    plan = FilterPlan.for_model(model, FilterSpec("centralize"))
    weights = flat.weights.clone()
    plans = {UNFILTERED: None, "centralize": plan}
    found = sharpness(flat, F.cross_entropy(model(x), y), plans)
    assert torch.equal(flat.weights, weights)

    def loss(vector):
        return F.cross_entropy(functional_call(model, flat_pieces(vector), x), y)

    def flat_pieces(vector):
        named = dict(model.named_parameters())
        return {n: vector[part].view_as(named[n]) for n, part in flat.segments.items()}

    hessian = torch.autograd.functional.hessian(loss, weights)
    columns = []
    for column in hessian:
        flat.grads.copy_(column)
        plan.filter_grads_()
        columns.append(flat.grads.clone())
    filtered = torch.stack(columns, dim=1)
    expected = {UNFILTERED: hessian, "centralize": filtered}
    assert list(found) == list(expected)
    for label, matrix in expected.items():
        whole = float(torch.linalg.eigvals(matrix.double()).real.max())
        assert found[label] == pytest.approx(whole, rel=1e-3)
    assert found["centralize"] < 0.9 * found[UNFILTERED]


def collector_of(settings):
    dataset = specgrad_data.load("digits")
    tried = {"centralize": {"filter": "centralize"}}
    request = Request(noise_batches=0, sharpness=(UNFILTERED, "centralize"), contenders=tried)
    return Collector(settings, dataset, prepare.divide(settings, dataset), request)


def test_attention_has_a_second_derivative(small):
    collector = collector_of(small(batch_size=4, model="vit_small"))
    found = collector.checkpoint(collector.flat.weights.clone(), [1]).sharpness
    assert 0 < found["centralize"] <= found[UNFILTERED] * 1.001


def test_a_model_without_one_is_named_in_a_sentence(small, monkeypatch):
    def refusing(*given):
        raise RuntimeError("derivative for some backward is not implemented")

    monkeypatch.setattr(collect, "sharpness", refusing)
    collector = collector_of(small(batch_size=4))
    with pytest.raises(ConfigError, match="client 1 in round 0: derivative for some"):
        collector.checkpoint(collector.flat.weights.clone(), [1])


def test_a_checkpoint_has_the_mean_over_clients(small):
    collector = collector_of(small(batch_size=8))
    weights = collector.flat.weights.clone()
    both, one, other = (
        collector.checkpoint(weights, clients).sharpness for clients in ([1, 3], [1], [3])
    )
    assert one != other
    for label in (UNFILTERED, "centralize"):
        assert both[label] == pytest.approx((one[label] + other[label]) / 2)
    assert collector.checkpoint(weights, [1]).as_dict()["sharpness"] == one
