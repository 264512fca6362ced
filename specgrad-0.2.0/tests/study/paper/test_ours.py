"""Experiments of ours: their runs by settings, and learning rates chosen on held-out samples."""

from __future__ import annotations

import pytest
from specgrad_fl.config import Config
from specgrad_study.paper import ours
from specgrad_study.paper.archive import Finished, Source
from specgrad_study.paper.presets import PRESETS


def finished(validation: float, test: float) -> Finished:
    summary = {"validation_mean_last_10": validation, "mean_last_10": test, "final_accuracy": test}
    return Finished("run", summary, {}, Source())


def test_tuned_runs_are_the_preset_with_a_rate_and_held_out_samples():
    preset = PRESETS["cpu"]()
    cells = {cell.row: cell for cell in ours.TUNED.cells(preset)}
    assert len(cells) == 15
    cell = cells[ours.at("fft 0.05", 0.2)]
    assert cell.config == preset.base.replace(lr=0.2, validation=0.1, filter="fft")
    assert cell.seeds == (0, 1, 2)


def test_the_rate_is_chosen_on_validation_over_shared_seeds():
    runs = {
        0.1: {0: finished(0.5, 0.9), 1: finished(0.5, 0.9)},
        0.2: {0: finished(0.6, 0.1), 1: finished(0.6, 0.2)},
        0.4: {0: finished(0.7, 0.8)},  # with its one seed it would not be fair to the others
    }
    assert ours.chosen_rate(runs) == 0.4
    runs[0.4] = {0: finished(0.3, 0.8), 1: finished(0.9, 0.8)}
    assert ours.chosen_rate(runs) in (0.2, 0.4)
    runs[0.4] = {}
    assert ours.chosen_rate(runs) == 0.2
    assert ours.chosen_rate({0.1: {}}) is None


def test_test_accuracy_of_the_chosen_rate_is_reported(monkeypatch):
    cells = ours.TUNED.cells(PRESETS["cpu"]())
    by_row = {cell.row: cell for cell in cells}

    class Known:
        """Every run, better the farther its rate is from 0.4 on validation, and worse on test."""

        def finished(self, config: Config) -> Finished | None:
            if config.seed > 2:
                return None
            gain = {"none": 0.0, "fft": 0.1, "centralize": 0.05}[config.filter]
            return finished(1 - config.lr + gain, config.lr + gain + config.seed / 100)

    results = ours.tuned_reading(cells, Known(), "last10")
    held = results[ours.best("fft 0.05"), ours.HELD_OUT]
    assert held.values == pytest.approx({0: 12.0, 1: 13.0, 2: 14.0})
    assert held == results[ours.at("fft 0.05", 0.02), ours.HELD_OUT]
    assert "fft 0.05 0.02 (at an end of the grid)" in ours._told(results, Known())
    assert ours._same_rate(ours.best("fft 0.05")) == ours.best("none")
    assert ours._same_rate(by_row[ours.at("centralize", 0.1)].row) == ours.at("none", 0.1)


@pytest.mark.parametrize("experiment", [ours.WHY, ours.RELATIVES])
def test_rows_are_runs_of_their_own(experiment):
    for preset in PRESETS.values():
        cells = experiment.cells(preset())
        assert len({cell.config.digest for cell in cells}) == len(cells)


def test_the_papers_preset_has_variants_of_its_own_network():
    cells = {cell.row: cell.config for cell in ours.WHY.cells(PRESETS["paper"]())[:13]}
    assert cells[ours.FIRST].model.endswith(":resnet20")
    assert cells[ours.SERVER].options["model"] == "resnet20"
