"""The real layer lists: launches and scratch memory; accuracy on every length of ResNet-20.

Layers of one length are the same programs on other addresses, so every length runs once.
"""

import pytest
import torch
from representatives import only
from triton_tools.compare import TOLERANCE, random_grads, relative_errors
from triton_tools.lists import MODELS
from triton_tools.shadow import shadow_memory

from specgrad_kernels.backends.triton import schedule
from specgrad_kernels.backends.triton.signals import contiguous_signal
from specgrad_kernels.spec import FilterSpec

MOST_LAUNCHES = {"resnet20": 3, "resnet18": 5, "wrn56_2": 3, "densenet121": 3, "vit": 3}
LENGTHS = sorted(set(MODELS["resnet20"]))
PROMISED = 2e-7


@pytest.mark.parametrize("name", MODELS)
def test_launches_and_scratch_memory(name):
    lengths = MODELS[name]
    signals = [contiguous_signal(d, index) for index, d in enumerate(lengths)]
    plan = schedule.build(signals, FilterSpec(), double=False)
    assert len(plan.launches) == MOST_LAUNCHES[name]
    assert plan.workspace <= 0.27 * sum(lengths)
    for method in ("lap", "gaussian"):
        assert len(schedule.build(signals, FilterSpec(method=method), False).launches) == 2


def test_small_layers_fill_a_gpu():
    signals = [contiguous_signal(d, index) for index, d in enumerate(MODELS["resnet20"])]
    first, _, last = schedule.build(signals, FilterSpec(), double=False).launches
    assert len(first.programs) >= 130
    assert len(last.programs) >= 130


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("method", only(["fft"], ["fft", "lap", "gaussian"]))
def test_every_length_of_resnet20(method):
    grads = random_grads(LENGTHS)
    with shadow_memory(grads):
        errors = relative_errors(grads, FilterSpec(method=method))
    assert max(errors) < (PROMISED if method == "fft" else TOLERANCE[torch.float32])
