"""Moving-average and Gaussian detrend against the float64 reference."""

import pytest
import torch
from representatives import only
from triton_tools.compare import TOLERANCE, random_grads, worst_error

from specgrad_kernels.backends.triton import launch
from specgrad_kernels.spec import BOUNDARIES, FilterSpec

METHODS = ["lap", "gaussian"]
WIDTHS = {"lap": {"window": 25}, "gaussian": {"sigma": 7.5}}


@pytest.mark.parametrize("boundary", only(["count", "circular"], BOUNDARIES))
@pytest.mark.parametrize("method", METHODS)
def test_awkward_lengths_in_one_tile_each(method, boundary):
    grads = random_grads([1, 2, 3, 7, 31, 32, 33, 61, 97, 433])
    spec = FilterSpec(method=method, boundary=boundary, **WIDTHS[method])
    assert worst_error(grads, spec) < TOLERANCE[torch.float32]
    assert launch.calls.find(grads, spec).launches == 1


@pytest.mark.parametrize("boundary", only(["reflect"], BOUNDARIES))
@pytest.mark.parametrize("method", METHODS)
def test_tile_size_and_its_neighbours(method, boundary):
    tile = 2048 if method == "lap" else 4096
    grads = random_grads([5, tile - 1, tile, tile + 1, 2 * tile + 3])
    spec = FilterSpec(method=method, boundary=boundary, **WIDTHS[method])
    assert worst_error(grads, spec) < TOLERANCE[torch.float32]
    assert launch.calls.find(grads, spec).launches == 2


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_dtypes(method, dtype):
    assert (
        worst_error(random_grads([40, 4099], dtype), FilterSpec(method=method)) < TOLERANCE[dtype]
    )


@pytest.mark.parametrize("boundary", only(["reflect"], BOUNDARIES))
def test_windows_wider_than_the_signal(boundary):
    spec = FilterSpec(method="lap", window=301, boundary=boundary)
    assert worst_error(random_grads([1, 2, 50, 150, 151, 2100]), spec) < TOLERANCE[torch.float32]


def test_a_window_of_one_leaves_nothing():
    grads = random_grads([100, 5000])
    launch.run(grads, FilterSpec(method="lap", window=1))
    assert all(grad.abs().max() < 1e-6 for grad in grads)


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_vanishes_to_the_ends(method):
    grads = [torch.full((5000,), 3.0)]
    launch.run(grads, FilterSpec(method=method))
    assert grads[0].abs().max() < 3e-6
