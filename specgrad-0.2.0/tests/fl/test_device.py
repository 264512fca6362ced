"""The trainer on a GPU, as far as that can be tried without one."""

import pytest
import specgrad_data
import torch
from pretended import DEVICE, OnDevice, second_gpu
from specgrad_fl import machine, prepare
from specgrad_fl.errors import ConfigError

from specgrad_kernels import backends


def test_tensors_of_two_devices_do_not_mix(monkeypatch):
    with second_gpu(monkeypatch):
        there = torch.ones(3, device=DEVICE)
        assert isinstance(there, OnDevice)
        assert (there * 2).device == DEVICE
        assert type(there.cpu()) is torch.Tensor
        with pytest.raises(RuntimeError, match="one device"):
            there + torch.ones(3)


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_run_on_a_device_is_the_run_on_the_cpu(monkeypatch, play, method):
    settings = {"method": method, "filter": "fft", "filter_backend": "torch", "rounds": 2}
    expected = play(**settings)
    with second_gpu(monkeypatch):
        made = play(device="cuda:1", **settings)
        assert made.flat.weights.device == DEVICE
        assert torch.equal(made.flat.weights.cpu(), expected.flat.weights)
    losses = [[record["train_loss"] for record in run.records] for run in (made, expected)]
    assert losses[0] == losses[1]


def test_no_batch_is_waited_for(monkeypatch, play):
    """Many times as many batches and twice the epochs, and not one copy more that a GPU awaits."""
    waited = []
    for settings in ({"batch_size": 240}, {"batch_size": 20, "epochs": 2}):
        with second_gpu(monkeypatch) as gpu:
            play(device="cuda:1", filter="none", rounds=1, active=1, augment=True, **settings)
        waited.append(len(gpu.waited))
    assert waited[0] == waited[1]


def test_the_filter_is_timed_on_its_own_device(monkeypatch, play):
    with second_gpu(monkeypatch) as gpu:
        made = play(device="cuda:1", filter="fft", filter_backend="torch", rounds=1)
    assert set(gpu.events) == {DEVICE}
    assert made.records[0]["seconds"]["client_filter"] > 0


def test_the_filter_is_asked_about_the_configured_device(monkeypatch, small):
    """The check of a configuration plans for the device that will train."""
    config = small(device="cuda:1", filter="fft", filter_backend="triton")
    dataset = specgrad_data.load("digits")
    asked = []

    def unsupported_reason(spec, device):
        asked.append(device)
        return "no such GPU" if device != DEVICE else None

    monkeypatch.setattr(backends.triton, "unsupported_reason", unsupported_reason)
    monkeypatch.setattr(backends.triton, "why_not", lambda: None)
    backends.choose.cache_clear()
    with second_gpu(monkeypatch):
        prepare.check_model(config, dataset)
    assert asked == [DEVICE]
    with pytest.raises(ConfigError, match="no such GPU"):
        prepare.check_model(config.replace(device="cpu"), dataset)
    backends.choose.cache_clear()


def test_float32_is_float32_and_said_to_be(monkeypatch, small):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert machine.report()["tf32"]
    machine.device_of(small())
    assert not machine.report()["tf32"]
