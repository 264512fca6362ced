"""What does the work: the spectrum of filters' means, effects of filters, and the contenders."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from specgrad_fl.config import Config
from specgrad_fl.filters import filter_plan
from specgrad_fl.vectors import FlatModel
from specgrad_study.diagnosis.effects import Effects
from specgrad_study.paper import means
from torch import nn

from specgrad_kernels import filter_grads_


@pytest.mark.parametrize("channels", [16, 64])
@pytest.mark.parametrize("ratio", [0.002, 0.01, 0.05])
def test_a_ratio_removes_the_share_of_the_means_that_the_closed_form_says(channels, ratio):
    """Independent means of 256 filters, as a staircase, through the op."""
    generator = torch.Generator().manual_seed(0)
    each = torch.randn(256, 1, 1, 1, generator=generator, dtype=torch.float64)
    staircase = each.expand(256, channels, 3, 3).clone()
    before = float(staircase.square().sum())
    filter_grads_([staircase], ratio=ratio)
    share = 1 - float(staircase.square().sum()) / before
    assert share == pytest.approx(means.removed(ratio, 9 * channels), abs=0.06)


def test_the_power_of_a_staircase_by_periodogram():
    rng = np.random.default_rng(0)
    steps, weights = 64, 32
    periodograms = [
        np.abs(np.fft.rfft(np.repeat(rng.normal(size=steps), weights))) ** 2 / (steps * weights)
        for _ in range(2000)
    ]
    found = np.mean(periodograms, axis=0)
    expected = means.power(np.arange(len(found)) / (steps * weights), weights)
    np.testing.assert_allclose(found[:200], expected[:200], rtol=0.2, atol=1e-9)


def test_all_of_the_power_is_there():
    assert means.removed(1.0, 144) == pytest.approx(1, abs=1e-6)


@pytest.fixture
def flat() -> FlatModel:
    torch.manual_seed(0)
    return FlatModel(nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(72, 3)))


def test_effects_by_hand(flat):
    """Two clients of weights 1 and 3 with gradients a and b: spread 3/16 |a - b|^2 times 4."""
    plan = filter_plan(flat.model, Config(filter="fft", ratio=0.2))
    effects = Effects(flat, {"fft": plan}, plan.names)
    clients = [torch.randn_like(flat.grads) for _ in range(2)]
    after = []
    for weight, gradient in zip((1.0, 3.0), clients, strict=True):
        flat.grads.copy_(gradient)
        effects.add(weight)
        assert torch.equal(flat.grads, gradient), "the gradients must be the same afterwards"
        plan.filter_grads_()
        after.append(flat.model[0].weight.grad.clone())
    held = flat.model[0].weight.numel()
    before = [c[:held] for c in clients]
    found = effects.result()["fft"]

    def spread(pair) -> float:
        return float((pair[0] - pair[1]).square().sum())

    def signal(pair) -> float:
        return float(((pair[0] + 3 * pair[1]) / 4).square().sum())

    assert found.disagreement == pytest.approx(spread(after) / spread(before), rel=1e-4)
    assert found.mean_gradient == pytest.approx(signal(after) / signal(before), rel=1e-4)


def test_a_scale_removes_as_much_of_both(flat):
    """What says nothing without the other: half of everything is a quarter of either energy."""

    def halve() -> None:
        for parameter in flat.model.parameters():
            parameter.grad.mul_(0.5)

    plan = SimpleNamespace(filter_grads_=halve)
    effects = Effects(flat, {"half": plan}, ["0.weight"])
    for _ in range(3):
        flat.grads.copy_(torch.randn_like(flat.grads))
        effects.add(1.0)
    found = effects.result()["half"]
    assert found.disagreement == pytest.approx(0.25)
    assert found.mean_gradient == pytest.approx(0.25)


def test_clients_that_agree_have_no_share_of_disagreement(flat):
    effects = Effects(flat, {"none": SimpleNamespace(filter_grads_=lambda: None)}, ["0.weight"])
    flat.grads.fill_(1.0)
    effects.add(1.0)
    found = effects.result()["none"]
    assert found.disagreement is None
    assert found.mean_gradient == pytest.approx(1)


def test_rounds_that_one_diagnosis_lacks_are_named():
    from specgrad_study.paper import drift
    from specgrad_study.paper.experiment import Cell

    def at(*rounds: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(round=number, origin={}) for number in rounds]

    cell = Cell("alpha 0.1", "CIFAR-10", Config(), (0, 1, 2))
    known = {0: at(0, 10, 20), 1: at(0)}
    found = drift.measured(cell, known, lambda held: float(len(held)))
    assert found.values == {0: 3, 1: 1}
    assert [str(each) for each in found.missing] == [
        "seed 1: not diagnosed at rounds 10, 20",
        "seed 2: not diagnosed",
    ]
    whole = drift.measured(cell, {0: at(0)}, lambda held: 1.0, rounds={0, 5})
    assert str(whole.missing[0]) == "seed 0: not diagnosed at rounds 5"
