"""No program depends on another of its launch: other orders, the same bits; no shared element."""

import pytest
import torch
from representatives import only
from triton_tools.compare import random_grads
from triton_tools.order import program_order
from triton_tools.shadow import shadow_memory

from specgrad_kernels.backends.triton import launch
from specgrad_kernels.spec import BOUNDARIES, FilterSpec

LENGTHS = {"fft": [40, 97, 432], "lap": [40, 4200], "gaussian": [40, 4200]}
CASES = [FilterSpec(), FilterSpec(ratio=0.3)] + [
    FilterSpec(method=method, boundary=boundary)
    for method in ("lap", "gaussian")
    for boundary in BOUNDARIES
]


def _grads(method):
    strided = random_grads([(8, 8, 3, 3)])[0].to(memory_format=torch.channels_last)
    return [*random_grads(LENGTHS[method]), strided]


@pytest.mark.parametrize(
    "spec", only(CASES[:4], CASES), ids=lambda s: f"{s.method}-{s.boundary}-{s.ratio}"
)
def test_order_does_not_matter_and_no_memory_is_shared(spec):
    forwards, others = _grads(spec.method), _grads(spec.method)
    launch.run(forwards, spec)
    order = "reversed" if spec.boundary in ("count", "circular") else 1
    with program_order(order), shadow_memory(others):
        launch.run(others, spec)
    assert all(torch.equal(a, b) for a, b in zip(others, forwards, strict=True))


def test_split_lines_share_nothing(limit_grid):
    limit_grid(lines=(3,))
    spec = FilterSpec()
    grads = random_grads([1536])
    with program_order("reversed"), shadow_memory(grads):
        launch.run(grads, spec)
    forwards = random_grads([1536])
    launch.run(forwards, spec)
    assert torch.equal(grads[0], forwards[0])
