"""Every length of ResNet-20: layers of one length are the same programs on other addresses."""

import pytest
import torch
from representatives import only
from triton_tools.compare import TOLERANCE, random_grads, relative_error
from triton_tools.shadow import shadow_memory

from specgrad_kernels.backends.triton.precompile import MODELS
from specgrad_kernels.spec import FilterSpec

LENGTHS = sorted(set(MODELS["resnet20"]))
PROMISED = 2e-7


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("method", only(["fft"], ["fft", "lap", "gaussian"]))
def test_every_length_of_resnet20(method):
    grads = random_grads(LENGTHS)
    with shadow_memory(grads):
        error = relative_error(grads, FilterSpec(method=method))
    assert error < (PROMISED if method == "fft" else TOLERANCE[torch.float32])
