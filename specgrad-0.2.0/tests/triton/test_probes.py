"""The probes of the self-check use every kernel of a call in the form that was compiled."""

import pytest
import torch
from triton_tools.lists import MODELS

from specgrad_kernels.backends.triton import schedule, self_check
from specgrad_kernels.backends.triton.compiling import Variant
from specgrad_kernels.backends.triton.signals import contiguous_signal
from specgrad_kernels.spec import BOUNDARIES, FilterSpec

CALLS = {
    **{name: (lengths, FilterSpec()) for name, lengths in MODELS.items()},
    **{
        f"ratio {ratio}": ([432, 2304, 36864], FilterSpec(ratio=ratio))
        for ratio in (0.02, 0.2, 0.5)
    },
    "odd cells": ([24, 81, 160, 312, 540, 648], FilterSpec()),
    "means": ([144, 27], FilterSpec("centralize")),
    **{
        f"{method} {boundary}": ([432, 36864], FilterSpec(method, boundary=boundary))
        for method in ("lap", "gaussian")
        for boundary in BOUNDARIES
    },
    "one tile": ([100, 432], FilterSpec("lap")),
    "wide window": ([50, 2100, 9000], FilterSpec("lap", window=301)),
}


def _variants(plan, dtype):
    return {Variant.from_launch(launch, dtype) for launch in plan.launches}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_probes_use_the_kernels_of_the_call_and_no_other(name, dtype):
    lengths, spec = CALLS[name]
    signals = [contiguous_signal(d, index) for index, d in enumerate(lengths)]
    double = dtype is torch.float64
    removals = [schedule.removal_of(spec, d, index, double) for index, d in enumerate(lengths)]
    pairs = [pair for pair in zip(signals, removals, strict=True) if pair[1].strategy != "identity"]
    plan = schedule.build_for(pairs, spec.boundary, double)
    used = set()
    for probes in self_check.probes(plan, spec, dtype):
        probed = [(contiguous_signal(own.d, place), own) for place, own in enumerate(probes)]
        used |= _variants(schedule.build_for(probed, spec.boundary, double), dtype)
        assert all(own.d <= 200_000 for own in probes)
    assert used == _variants(plan, dtype)
