"""The probes of the self-check, filtered by interpreted kernels, stay within their bounds."""

from functools import partial

import pytest
import torch

from specgrad_kernels.backends.triton import launch, schedule, self_check
from specgrad_kernels.backends.triton.signals import contiguous_signal
from specgrad_kernels.spec import FilterSpec

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("lengths", "spec", "dtype"),
    [
        ([432, 2304, 589824], FilterSpec(), torch.float32),
        ([432, 2304], FilterSpec(), torch.float16),
        ([432], FilterSpec("lap"), torch.float64),
        ([4608], FilterSpec("gaussian"), torch.float32),
        ([144], FilterSpec("centralize"), torch.bfloat16),
    ],
    ids=str,
)
def test_probes_pass(lengths, spec, dtype):
    signals = [contiguous_signal(d, index) for index, d in enumerate(lengths)]
    plan = schedule.build(signals, spec, dtype is torch.float64)
    run = partial(launch.run_schedule, room=0)
    for probes in self_check.probes(plan, spec, dtype):
        self_check._check_probes(probes, spec, dtype, CPU, run)
