"""No program depends on another of its launch: other orders, the same bits; no shared element."""

import pytest
import torch
from triton_tools.compare import random_grads
from triton_tools.order import program_order
from triton_tools.shadow import shadow_memory

from specgrad_kernels.backends.triton import launch
from specgrad_kernels.spec import BOUNDARIES, FilterSpec

LENGTHS = {"fft": [40, 97, 432, 4608], "lap": [40, 433, 9216], "gaussian": [40, 433, 9216]}
CASES = [FilterSpec(), FilterSpec(ratio=0.3)] + [
    FilterSpec(method=method, boundary=boundary)
    for method in ("lap", "gaussian")
    for boundary in BOUNDARIES
]


def _grads(method, layout):
    grads = random_grads(LENGTHS[method])
    if layout == "strided":
        grads.append(random_grads([(16, 16, 3, 3)])[0].to(memory_format=torch.channels_last))
    return grads


@pytest.mark.parametrize("layout", ["plain", "strided"])
@pytest.mark.parametrize("spec", CASES, ids=lambda s: f"{s.method}-{s.boundary}-{s.ratio}")
def test_order_does_not_matter_and_no_memory_is_shared(spec, layout):
    results = []
    for order in ("reversed", 1):
        grads = _grads(spec.method, layout)
        with program_order(order), shadow_memory(grads):
            launch.run(grads, spec)
        results.append(grads)
    forwards = _grads(spec.method, layout)
    launch.run(forwards, spec)
    for grads in results:
        assert all(torch.equal(a, b) for a, b in zip(grads, forwards, strict=True))


def test_split_lines_share_nothing(limit_grid):
    limit_grid(lines=(3,))
    spec = FilterSpec()
    grads = random_grads([4608])
    with program_order("reversed"), shadow_memory(grads):
        launch.run(grads, spec)
    forwards = random_grads([4608])
    launch.run(forwards, spec)
    assert torch.equal(grads[0], forwards[0])
