"""Any number of processes gives the same bits."""

from __future__ import annotations

import signal

import pytest
import torch
from federations import rounds_of
from representatives import only
from specgrad_fl import client, executor, storage, training
from specgrad_fl.errors import RunError
from specgrad_fl.methods import METHODS


@pytest.mark.exhaustive
@pytest.mark.interpreters
def test_workers_do_not_change_the_result(tmp_path, small):
    config = small(method="scaffold", filter="fft", rounds=2)
    one = training.train(config, tmp_path / "one")
    many = training.train(config.replace(workers=2), tmp_path / "many")
    assert rounds_of(one) == rounds_of(many)
    assert one.last_path.read_bytes() == many.last_path.read_bytes()
    assert many.records()[-1]["memory_mib"]["workers"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", only(["feddyn"], METHODS))
def test_no_method_depends_on_the_workers(tmp_path, small, method):
    config = small(method=method, filter="fft", rounds=2, sampling="bernoulli")
    one = training.train(config, tmp_path / "one")
    many = training.train(config.replace(workers=2), tmp_path / "many")
    assert rounds_of(one) == rounds_of(many)
    assert one.last_path.read_bytes() == many.last_path.read_bytes()


def test_a_worker_that_dies_is_reported(make_engine):
    made = make_engine(workers=2)
    made.round(0)
    made.executor._pool._processes[1].kill()
    with pytest.raises(RunError, match="worker 1 ended with exit code -9"):
        made.round(1)


def test_a_worker_that_fails_shows_its_traceback(make_engine):
    made = make_engine(workers=2)
    with pytest.raises(RuntimeError, match=r"worker \d failed:\nTraceback"):
        made.executor.train(0, "fast", [0])


def test_closing_does_not_wait_for_clients_in_training(make_engine):
    made = make_engine(workers=2, epochs=100_000)
    made.executor._pool._send(0, {"train": [0, 0.1, [0], [0]]})
    made.close()
    assert made.executor._pool._processes[0].returncode == -signal.SIGTERM


def test_buffers_are_averaged(tmp_path, small, monkeypatch):
    """BatchNorm's running statistics travel like weights, whole numbers included."""
    (tmp_path / "nets_with_batchnorm.py").write_text(
        "from torch import nn\n"
        "def make(num_classes, in_channels):\n"
        "    return nn.Sequential(nn.Conv2d(in_channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),\n"
        "        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = small(model="nets_with_batchnorm:make", rounds=2)
    one = training.train(config, tmp_path / "one")
    two = training.train(config.replace(workers=2), tmp_path / "two")
    assert one.last_path.read_bytes() == two.last_path.read_bytes()
    tensors, _ = storage.load_tensors(one.last_path)
    mean, variance, count = tensors["buffers"].split([4, 4, 1])
    assert float(mean.abs().max()) > 0
    assert not torch.equal(variance, torch.ones(4, dtype=torch.float64))
    steps = -(-239 // config.batch_size)
    assert int(count) == 2 * steps


def test_many_clients_share_a_message(make_engine, monkeypatch):
    made = make_engine(clients=40, active=40, partition="iid", workers=1)
    calls, measured = [], []
    each = made.executor._each
    monkeypatch.setattr(
        made.executor, "_each", lambda name, of: (calls.extend(of), each(name, of))[1]
    )
    monkeypatch.setattr(client, "peak_mib", lambda: (measured.append(1), 1.0)[1])
    reports = made.executor.train(0, 0.1, list(range(40)))
    assert [report.client for report in reports] == list(range(40))
    assert len(measured) == len(calls) <= executor.MESSAGES + 1
