"""``centralize`` against the float64 reference: one launch, any layout."""

import pytest
import torch
from triton_tools.compare import TOLERANCE, random_grads, worst_error
from triton_tools.shadow import shadow_memory

from specgrad_kernels.backends import triton
from specgrad_kernels.spec import FilterSpec


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_dtypes(dtype):
    grads = random_grads([(4, 8, 3, 3), (3, 16), (2, 1500), (5, 1), (7,)], dtype)
    with shadow_memory(grads):
        assert worst_error(grads, FilterSpec("centralize")) < TOLERANCE[dtype]


def test_layouts_and_stacks():
    grads = random_grads([(2, 3, 5, 3, 3), (2, 4, 6)])
    grads[0] = grads[0].permute(0, 1, 3, 4, 2)
    spec = FilterSpec("centralize", batch_dims=1)
    assert worst_error(grads, spec) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("group_dims", [0, 2])
def test_other_groups(group_dims):
    grads = random_grads([(4, 8, 3, 3), (7,)])
    assert worst_error(grads, FilterSpec("centralize", group_dims=group_dims)) < 1e-7


def test_it_takes_one_launch():
    layers = [(144, torch.float32), (27, torch.float32)]
    assert triton.launches(FilterSpec("centralize"), layers) == "1 launch"
    name, bound, workspace = triton.explain(FilterSpec("centralize"), 144, 0, torch.float32)
    assert (name, workspace) == ("means", 0)
    assert 0 < bound < 1e-6
