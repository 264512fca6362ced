"""The real layer lists: accuracy, launches, memory traffic, and no conflict between programs.

Layers of one length are the same programs on other addresses, so the larger models run every
length once and count it as often as it occurs. Their traffic is then an upper bound: tables
that layers of different length share are counted with each of them.
"""

from collections import Counter

import pytest
import torch
from triton_tools.compare import random_grads, relative_errors
from triton_tools.lists import MODELS
from triton_tools.shadow import shadow_memory

from specgrad_kernels.backends.triton import launch, report
from specgrad_kernels.spec import FilterSpec

MOST_LAUNCHES = {"resnet20": 3, "resnet18": 5, "wrn56_2": 3, "densenet121": 3, "vit": 3}
MOST_TRAFFIC = {"fft": 2.0, "lap": 1.05, "gaussian": 1.05}
IN_FULL = ["resnet20", "vit"]
_measured = {}


pytestmark = pytest.mark.usefixtures("large_tiles")


def _measure(lengths, method):
    """Bytes touched, those of tables, worst error, scratch bytes; kept, as models share lengths."""
    key = (tuple(lengths), method)
    if key not in _measured:
        grads = random_grads(lengths)
        spec = FilterSpec(method=method)
        with shadow_memory(grads) as shadow:
            error = max(relative_errors(grads, spec))
        bytes_touched = sum(launch.read + launch.written for launch in shadow.traffic)
        state = launch.prepare(grads, spec)
        scratch = sum(t.nbytes for memory in state.scratch for t in memory.values())
        shared = {group.coefficients.data_ptr() for group in state.tables.groups}
        tables = sum(step.by_address.get(start, 0) for step in shadow.traffic for start in shared)
        _measured[key] = bytes_touched - tables, tables, error, scratch
    return _measured[key]


def _check(name, method):
    lengths = MODELS[name]
    if name in IN_FULL:
        touched, tables, error, scratch = _measure(lengths, method)
        traffic = touched + tables
    else:
        traffic = error = scratch = 0
        for length, count in Counter(lengths).items():
            touched, tables, length_error, length_scratch = _measure([length], method)
            traffic += count * touched + tables
            scratch += count * length_scratch
            error = max(error, length_error)
    once = 4 * sum(lengths)
    print(
        f"{name:12} {method:8} traffic {traffic / (2 * once):.3f} "
        f"workspace {scratch / once:.3f} error {error:.1e}"
    )
    assert error < 2e-7
    assert traffic <= MOST_TRAFFIC[method] * 2 * once
    assert scratch <= 0.4 * once


@pytest.mark.parametrize("name", MODELS)
def test_fft(name):
    _check(name, "fft")
    layers = [(length, torch.float32) for length in MODELS[name]]
    assert report.launches(FilterSpec(), layers) == f"{MOST_LAUNCHES[name]} launches"


@pytest.mark.parametrize("method", ["lap", "gaussian"])
@pytest.mark.parametrize("name", IN_FULL)
def test_detrend(name, method):
    _check(name, method)


@pytest.mark.parametrize("method", ["lap", "gaussian"])
@pytest.mark.parametrize("name", MODELS)
def test_detrend_launches(name, method):
    layers = [(length, torch.float32) for length in MODELS[name]]
    assert report.launches(FilterSpec(method=method), layers) == "2 launches"


@pytest.mark.parametrize("method", ["lap", "gaussian"])
def test_detrend_of_a_long_layer(method):
    assert max(relative_errors(random_grads([589824]), FilterSpec(method=method))) < 5e-7


def test_resnet20_in_bfloat16():
    grads = random_grads(MODELS["resnet20"], torch.bfloat16)
    assert max(relative_errors(grads, FilterSpec())) < 2 * torch.finfo(torch.bfloat16).eps
