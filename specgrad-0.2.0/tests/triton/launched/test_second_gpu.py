"""Calls on tensors of a GPU, on one that is pretended."""

import pytest
import torch
from pretended import DEVICE, second_gpu
from triton_tools.compare import random_grads, reference

from specgrad_kernels.backends.triton import binding, launch
from specgrad_kernels.spec import FilterSpec


@pytest.fixture
def gpu(device, monkeypatch):
    monkeypatch.setenv("SPECGRAD_SELF_CHECK", "0")
    with second_gpu(monkeypatch) as pretended:
        pretended.stream = lambda: device.stream
        yield pretended


def _there(lengths):
    grads = random_grads(lengths)
    exact = reference(grads, FilterSpec())
    return [grad.to(DEVICE) for grad in grads], exact


def _error(grads, exact):
    return float((grads[0].cpu().double() - exact[0]).norm() / exact[0].norm())


def test_gradients_of_a_second_gpu_are_filtered_there(device, gpu, monkeypatch):
    compiled_for = []
    bind = binding.bind
    monkeypatch.setattr(
        binding, "bind", lambda *given: (compiled_for.append(gpu.current), bind(*given))[1]
    )
    grads, exact = _there([432])
    launch.run(grads, FilterSpec())
    device.work()
    assert _error(grads, exact) < 1e-6
    assert set(compiled_for) == {DEVICE.index}
    assert gpu.current == 0


def test_tables_are_not_given_back_before_every_stream_has_read_them(device, gpu):
    grads, exact = _there([432])
    launch.run(grads, FilterSpec())
    device.work()
    again, _ = _there([432])
    with device.on_stream(8):
        launch.run(again, FilterSpec())
    device.work()
    assert _error(again, exact) < 1e-6
    tables = {place for place, stream in gpu.read if stream == 0} & {
        place for place, stream in gpu.read if stream == 8
    }
    assert len(tables) >= 3


def test_gradients_of_two_devices_are_refused(gpu):
    grads, _ = _there([41, 43])
    with pytest.raises(ValueError, match="each device's gradients in a call of its own"):
        launch.run([grads[0], torch.randn(43)], FilterSpec())
