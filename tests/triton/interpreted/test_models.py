"""The real layer lists: accuracy, launches, memory, and no conflict between programs."""

import pytest
import torch
from triton_tools.compare import random_grads, relative_errors
from triton_tools.large import large_sizes
from triton_tools.lists import MODELS
from triton_tools.shadow import shadow_memory

from specgrad_kernels.backends.triton import launch, targets
from specgrad_kernels.spec import FilterSpec

MOST_LAUNCHES = {"resnet20": 3, "resnet18": 5, "wrn56_2": 3, "densenet121": 3, "vit": 3}
MOST_TRAFFIC = {"fft": 2.0, "lap": 1.05, "gaussian": 1.05}
SMALL = ["resnet20", "vit"]


def _check(name, method, monkeypatch):
    monkeypatch.setattr(targets, "sizes_of", large_sizes)
    grads = random_grads(MODELS[name])
    spec = FilterSpec(method=method)
    with shadow_memory(grads) as shadow:
        errors = relative_errors(grads, spec)
    assert max(errors) < 5e-7
    state = launch.prepare(grads, spec)
    assert state.launches <= (MOST_LAUNCHES[name] if method == "fft" else 2)
    once = 2 * sum(grad.numel() * grad.element_size() for grad in grads)
    traffic = sum(launch.read + launch.written for launch in shadow.traffic) / once
    workspace = sum(
        group.tensors[name].numel() * group.tensors[name].element_size()
        for group in state.groups
        for name in ("workspace", "borders", "coefficients")
    )
    print(
        f"{name:12} {method:8} launches {state.launches} traffic {traffic:.3f} "
        f"workspace {2 * workspace / once:.3f} error {max(errors):.1e}"
    )
    assert traffic <= MOST_TRAFFIC[method]
    assert 2 * workspace / once <= 0.3


@pytest.mark.parametrize("name", MODELS)
def test_fft(name, monkeypatch):
    _check(name, "fft", monkeypatch)


@pytest.mark.parametrize("method", ["lap", "gaussian"])
@pytest.mark.parametrize("name", SMALL)
def test_detrend(name, method, monkeypatch):
    _check(name, method, monkeypatch)


@pytest.mark.parametrize("method", ["lap", "gaussian"])
def test_detrend_of_the_longest_layer(method, monkeypatch):
    monkeypatch.setattr(targets, "sizes_of", large_sizes)
    grads = random_grads([max(MODELS["resnet18"])])
    assert max(relative_errors(grads, FilterSpec(method=method))) < 5e-7


def test_resnet20_as_it_is_launched():
    assert max(relative_errors(random_grads(MODELS["resnet20"]), FilterSpec())) < 5e-7


def test_resnet20_in_bfloat16(monkeypatch):
    monkeypatch.setattr(targets, "sizes_of", large_sizes)
    grads = random_grads(MODELS["resnet20"], torch.bfloat16)
    assert max(relative_errors(grads, FilterSpec())) < 2 * torch.finfo(torch.bfloat16).eps
