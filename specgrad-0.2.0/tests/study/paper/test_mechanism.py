"""The mechanism: the spectrum of channel means, and the contenders."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from specgrad_fl.config import Config
from specgrad_fl.runs import run_name
from specgrad_study.paper import drift, means, mechanism
from specgrad_study.paper.experiment import Cell
from specgrad_study.paper.presets import PRESETS

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


@pytest.mark.parametrize("preset", PRESETS)
def test_sharpness_is_measured_along_one_run_of_all_that_are_diagnosed(preset):
    diagnosed = [cell for cell in drift.SPECTRAL_BIAS.cells(PRESETS[preset]()) if cell.config]
    sharp = {run_name(c.config) for c in diagnosed if drift._request(c.config).sharpness}
    cells = mechanism.EXPERIMENT.cells(PRESETS[preset]())
    assert sharp == {run_name(mechanism._diagnosed(cells).config)}


def test_a_seed_that_lacks_rounds_has_no_value_and_they_are_named():
    def at(*rounds: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(round=number, origin={}) for number in rounds]

    cell = Cell("alpha 0.1", "CIFAR-10", Config(), (0, 1, 2))
    known = {0: at(0, 10, 20), 1: at(0)}
    found = drift.measured(cell, known, lambda held: float(len(held)))
    assert found.values == {0: 3}  # means over other rounds are no pair
    assert [str(each) for each in found.missing] == [
        "seed 1: not diagnosed at rounds 10, 20",
        "seed 2: not diagnosed",
    ]
    whole = drift.measured(cell, {0: at(0)}, lambda held: 1.0, rounds={0, 5})
    assert str(whole.missing[0]) == "seed 0: not diagnosed at rounds 5"
