"""Poisoned updates: what the guard leaves out, robust averages, and the checkpoint before."""

from __future__ import annotations

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from representatives import only
from specgrad_fl import models, results, storage, training
from specgrad_fl.engine import Engine
from specgrad_fl.errors import Diverged
from specgrad_fl.methods import METHODS
from specgrad_fl.methods.base import median, trimmed_mean
from torch import nn

POISONED = 4


def mlp(num_classes, in_channels, image_size):
    inputs = in_channels * image_size**2
    layers = (nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, num_classes))
    return nn.Sequential(*layers)


@pytest.fixture(autouse=True)
def _quick_model(monkeypatch):
    monkeypatch.setitem(models.MODELS, "mlp", mlp)


SETTINGS = {"model": "mlp", "clients": 10, "active": 10, "batch_size": 20, "alpha": 0.5}


def poison(monkeypatch, change, clients=(POISONED,)):
    """Replace what some clients send: ``change(start, weights)``; they tell if it is finite."""
    honest = Engine._guarded

    def guarded(self, reports):
        for row, report in enumerate(reports):
            if report.client in clients:
                made = self.board.results[row]
                made.copy_(change(self.board.weights, made))
                reports[row] = replace(report, finite=bool(torch.isfinite(made).all()))
        return honest(self, reports)

    monkeypatch.setattr(Engine, "_guarded", guarded)


def test_coordinates_are_averaged_robustly():
    rows = torch.tensor(np.random.default_rng(0).normal(size=(10, 50)), dtype=torch.float32)
    shares = torch.full((10,), 0.1, dtype=torch.float64)
    ordered = np.sort(rows.numpy().astype(np.float64), 0)
    np.testing.assert_allclose(median(rows, shares), np.median(ordered, 0), rtol=1e-6)
    np.testing.assert_allclose(trimmed_mean(rows, shares), ordered[3:7].mean(0), rtol=1e-6)
    for few in (1, 2, 3):
        assert torch.isfinite(trimmed_mean(rows[:few], shares[:few])).all()
    assert torch.equal(median(rows[:1], torch.ones(1)), rows[0])


@pytest.mark.parametrize(
    "value", only([1e2, np.nan], [1e2, 1e4, 1e30, 3e38, -3e38, np.inf, np.nan])
)
def test_one_poisoned_client_of_ten_changes_little(play, monkeypatch, value):
    """And the record says who was left out, and why."""
    settings = {**SETTINGS, "rounds": 12, "eval_every": 12}
    honest = play(**settings).records[-1]["test_accuracy"]
    assert honest > 0.7
    poison(monkeypatch, lambda start, made: torch.full_like(made, value))
    found = play(**settings).records
    assert abs(found[-1]["test_accuracy"] - honest) < 0.02
    for record in found:
        assert record["left_out"] == [POISONED]
        assert POISONED not in record["clients"]
        far = "times as long as the round's median, and guard leaves out"
        assert (far if np.isfinite(value) else "are no longer finite") in record["reasons"][0]


@pytest.mark.parametrize("settings", [{"guard": 0.0}, {"clients": 2, "active": 2}])
def test_updates_that_are_not_finite_are_left_out_without_a_guard_too(make_engine, settings):
    """Nobody can average them; where there are no others, the run has diverged."""
    made = make_engine(**{**SETTINGS, **settings})
    train, diverged = made.executor.train, [1]

    def training(*arguments):
        reports = train(*arguments)
        for client in diverged:
            made.board.results[client].fill_(np.nan)
            reports[client] = replace(reports[client], finite=False, loss=np.nan)
        return reports

    made.executor.train = training
    record = made.round(0)
    assert record["left_out"] == [1]
    assert np.isfinite(record["train_loss"])
    assert torch.isfinite(made.board.weights).all()
    diverged[:] = range(made.config.clients)
    with pytest.raises(Diverged, match=f"weights of all {made.config.clients} clients are no"):
        made.round(1)


def test_an_update_with_nan_does_not_blind_the_guard(make_engine):
    """Its length is NaN, and so would be a median that counts it."""
    made = make_engine(**SETTINGS)
    made.board.results.normal_()
    made.board.results[2].fill_(np.nan)
    reports = [SimpleNamespace(client=client, finite=True) for client in range(10)]
    assert list(made._guarded(reports)[1]) == [2]


def test_without_a_guard_it_would_be_lost(play, monkeypatch):
    poison(monkeypatch, lambda start, made: torch.full_like(made, 1e2))
    found = play(**SETTINGS, rounds=4, guard=0.0).records
    assert found[-1]["test_accuracy"] < 0.5
    assert "left_out" not in found[-1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("aggregation", ["median", "trimmed_mean"])
def test_three_of_ten_are_outvoted_with_every_method(play, monkeypatch, method, aggregation):
    settings = {**SETTINGS, "rounds": 2, "guard": 0.0, "method": method, "eval_every": 2}
    poison(monkeypatch, lambda start, made: torch.full_like(made, 1e4), (1, 5, 8))
    robust = play(**settings, aggregation=aggregation).board.weights
    averaged = play(**settings).board.weights
    assert robust.abs().max() < 10
    assert (averaged - robust).abs().max() > 1


def test_honest_rounds_are_left_alone(play):
    one, two = (play(**SETTINGS, rounds=3, guard=guard) for guard in (0.0, 10.0))
    assert torch.equal(one.board.weights, two.board.weights)
    assert all("left_out" not in record for record in two.records)


def test_a_client_that_is_left_out_keeps_its_old_state(make_engine, monkeypatch):
    made = make_engine(**SETTINGS, method="scaffold", rounds=2)
    made.round(0)
    before = {client: made.states.get(client)["c_k"].clone() for client in range(10)}
    poison(monkeypatch, lambda start, made: torch.full_like(made, 1e6))
    made.round(1)
    same = [torch.equal(made.states.get(c)["c_k"], before[c]) for c in range(10)]
    assert same == [client == POISONED for client in range(10)]


def test_buffers_are_guarded_too(make_engine):
    """Running statistics belong to an update; their own size is a measure for their change."""
    made = make_engine(**SETTINGS)
    rows = torch.ones(10, 3, dtype=torch.float64)
    board = made.board
    board.buffers, board.buffer_results = torch.ones(3, dtype=torch.float64), rows
    board.results.normal_()
    rows[0], rows[1] = 5.0, 1e6
    reports = [SimpleNamespace(client=client, finite=True) for client in range(10)]
    kept, far = made._guarded(reports)
    assert list(far) == [1]
    assert "buffers" in far[1]
    assert torch.equal(rows[0], torch.full((3,), 5.0, dtype=torch.float64))
    assert torch.equal(rows[1], torch.ones(3, dtype=torch.float64))
    assert [report.client for report in kept] == [0, *range(2, 10)]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_run_can_go_back_to_the_checkpoint_before_the_last(tmp_path, small, method):
    config = small(**{**SETTINGS, "active": 4}, method=method, rounds=4)
    run = training.train(config, tmp_path / "run")
    assert run.previous()["rounds"] == 3
    last = results.load_run(run.path).model("last").state_dict()
    previous = results.load_run(run.path).model("previous").state_dict()
    assert any(not torch.equal(last[name], previous[name]) for name in last)
    whole = run.last_path.read_bytes()
    shutil.copy(run.previous_path, run.last_path)
    run.summary_path.unlink()
    assert training.resume(run.path).last_path.read_bytes() == whole


def test_a_damaged_spare_checkpoint_costs_nothing(tmp_path, small):
    run = training.train(small(**{**SETTINGS, "active": 3}, rounds=2), tmp_path / "run")
    run.previous_path.write_bytes(b"damaged")
    run.summary_path.unlink()
    assert training.resume(run.path).finished
    assert run.previous() == {}
    assert storage.load_tensors(run.last_path)


def test_facts_of_the_spare_checkpoint_are_read_without_its_tensors(tmp_path, small, monkeypatch):
    run = training.train(small(**{**SETTINGS, "active": 3}, rounds=2), tmp_path / "run")
    monkeypatch.setattr(storage, "load_tensors", lambda *_: pytest.fail("tensors were read"))
    assert run.previous() == {"rounds": 1, "client_rounds": {}}
