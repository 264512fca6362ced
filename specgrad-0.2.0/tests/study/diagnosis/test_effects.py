"""Shares left of disagreement and mean gradient, against the defining sums in float64."""

from types import SimpleNamespace

import pytest
import torch
from specgrad_study.diagnosis import Effects
from torch import nn

from specgrad_kernels import FilterPlan, FilterSpec, filter_grads_

SHAPES = {"conv": (8, 4, 3, 3), "odd": (7, 13, 3, 3), "other": (6, 2, 3, 3)}
FILTERED = ["conv", "odd"]
METHODS = ["fft", "lap", "gaussian", "centralize", "fft_high", "random", "l2"]
ORDERS = [None, "0231", "3210"]
TRIED = [(method, order) for method in METHODS for order in ORDERS]
TRIED += [("fft", "random:5"), ("fft2d", None)]


def clients(seed, count=5):
    """Weights and gradients around a common mean."""
    draw = torch.Generator().manual_seed(seed)
    mean = {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in SHAPES.items()}
    for _ in range(count):
        weight = float(torch.rand((), generator=draw)) + 0.1
        own = {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in SHAPES.items()}
        yield weight, {n: mean[n] + own[n] + own[n].cumsum(0) for n in SHAPES}


def energies(federation):
    """Disagreement and squared norm of the mean in the filtered layers."""
    whole = sum(weight for weight, _ in federation)
    vectors = [torch.cat([g[n].reshape(-1) for n in FILTERED]) for _, g in federation]
    shares = [weight / whole for weight, _ in federation]
    mean = sum(p * v for p, v in zip(shares, vectors, strict=True))
    spread = sum(p * (v - mean).square().sum() for p, v in zip(shares, vectors, strict=True))
    return float(spread), float(mean.square().sum())


def effect(federation, names, spec):
    parameters = {n: nn.Parameter(torch.zeros(s, dtype=torch.float64)) for n, s in SHAPES.items()}
    plan = FilterPlan([(name, parameters[name]) for name in names], spec, backend="torch")
    effects = Effects({"tried": plan}, parameters, FILTERED)
    for weight, gradients in federation:
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].clone()
        effects.add(weight)
        for name, parameter in parameters.items():
            assert torch.equal(parameter.grad, gradients[name])
    return effects.result()["tried"]


@pytest.mark.parametrize(("method", "order"), TRIED)
def test_what_a_filter_leaves(method, order):
    federation = list(clients(11))
    found = effect(federation, FILTERED, FilterSpec(method, 0.2, order=order))
    before = energies(federation)
    for _, gradients in federation:
        layers = [gradients[name] for name in FILTERED]
        filter_grads_(layers, method=method, ratio=0.2, order=order, backend="torch")
    after = energies(federation)
    assert found.disagreement == pytest.approx(after[0] / before[0], rel=1e-10)
    assert found.mean_gradient == pytest.approx(after[1] / before[1], rel=1e-10)


def test_a_filter_of_other_layers_changes_none_of_these():
    found = effect(list(clients(0)), ["other"], FilterSpec())
    assert found.disagreement == found.mean_gradient == 1


def test_outer_output_channels_keep_less_disagreement_than_random_order():
    """Clients that disagree about whole output channels: smooth only where these lie together."""
    draw = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(32, 16, 3, 3))
    orders = ["0123", "0231", "0312", "random:0"]
    plans = {order: FilterPlan([("w", weight)], FilterSpec(order=order)) for order in orders}
    effects = Effects(plans, {"w": weight}, ["w"])
    for _ in range(10):
        channels = torch.randn(32, 1, 1, 1, generator=draw).cumsum(0)
        weight.grad = channels - channels.mean() + 0.3 * torch.randn(weight.shape, generator=draw)
        effects.add(1.0)
    left = {order: found.disagreement for order, found in effects.result().items()}
    assert max(left[order] for order in orders[:3]) < 0.2
    assert left["random:0"] > 0.9


def test_a_filter_that_does_not_fit_is_named():
    weight = nn.Parameter(torch.zeros(40))
    weight.grad = torch.ones(40)
    plan = FilterPlan([("w", weight)], FilterSpec("fft2d"))
    with pytest.raises(ValueError, match=r"'2d' cannot be tried: .* two kernel dimensions"):
        Effects({"2d": plan}, {"w": weight}, ["w"]).add(1.0)


def test_clients_that_agree_have_no_share():
    weight = nn.Parameter(torch.zeros(40))
    effects = Effects({"fft": FilterPlan([("w", weight)])}, {"w": weight}, ["w"])
    for _ in range(2):
        weight.grad = torch.ones(40)
        effects.add(1.0)
    assert effects.result()["fft"].disagreement is None


def test_a_scale_removes_as_much_of_both():
    """One share alone says nothing: half of everything is a quarter of either energy."""
    weight = nn.Parameter(torch.zeros(40))
    plan = SimpleNamespace(names=["w"], filter_grads_=lambda: weight.grad.mul_(0.5))
    effects = Effects({"half": plan}, {"w": weight}, ["w"])
    for seed in range(3):
        weight.grad = torch.randn(40, generator=torch.Generator().manual_seed(seed))
        effects.add(1.0)
    found = effects.result()["half"]
    assert found.disagreement == pytest.approx(0.25)
    assert found.mean_gradient == pytest.approx(0.25)
