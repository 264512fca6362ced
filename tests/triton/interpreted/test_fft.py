"""The band projection, the dense basis and the stacked rest against the float64 reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_tools.compare import TOLERANCE, random_grads, relative_errors, worst_error
from triton_tools.large import large_sizes

from specgrad_kernels.backends.triton import launch, targets
from specgrad_kernels.spec import FilterSpec


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_lengths_of_every_kind(dtype):
    """Identity, dense, band with two and three factors, at the sizes that are launched."""
    lengths = [1, 2, 3, 37, 40, 97, 432, 433, 2304, 9216 - 768]
    assert worst_error(random_grads(lengths, dtype), FilterSpec()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_split_lines(dtype, monkeypatch):
    monkeypatch.setattr(targets, "sizes_of", large_sizes)
    lengths = [294912] if dtype is torch.float32 else [147456]
    grads = random_grads(lengths, dtype)
    assert max(relative_errors(grads, FilterSpec())) < TOLERANCE[dtype]
    assert launch.prepare(grads, FilterSpec()).tables.launches == 5


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.2, 0.3, 0.45])
def test_ratios(ratio, monkeypatch):
    monkeypatch.setattr(targets, "sizes_of", large_sizes)
    grads = random_grads([432, 2304, 18432])
    assert max(relative_errors(grads, FilterSpec(ratio=ratio))) < TOLERANCE[torch.float32]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    cells=st.integers(2, 40),
    factor=st.sampled_from([8, 12, 16, 27, 32, 48]),
    ratio=st.sampled_from([0.02, 0.05, 0.13]),
)
def test_any_small_length(cells, factor, ratio):
    targets.sizes_of, sizes_of = large_sizes, targets.sizes_of
    try:
        grads = random_grads([cells * factor], seed=cells)
        assert worst_error(grads, FilterSpec(ratio=ratio)) < TOLERANCE[torch.float32]
    finally:
        targets.sizes_of = sizes_of


def test_prime_lengths_are_stacked_and_the_rest_is_not():
    grads = random_grads([36871, 36871, 2304])
    spec = FilterSpec(ratio=(0.05, 0.05, 0.1))
    assert max(relative_errors(grads, spec)) < TOLERANCE[torch.float32]


def test_one_ratio_per_tensor_keeps_zero_ratios_untouched():
    grads = random_grads([2304, 2304, 432])
    untouched = grads[1].clone()
    assert max(relative_errors(grads, FilterSpec(ratio=(0.05, 0, 0.1)))) < TOLERANCE[torch.float32]
    assert torch.equal(grads[1], untouched)


def test_filtering_twice_is_filtering_once():
    grads = random_grads([2304, 4608])
    launch.run(grads, FilterSpec())
    once = [grad.clone() for grad in grads]
    launch.run(grads, FilterSpec())
    for grad, first in zip(grads, once, strict=True):
        assert (grad - first).norm() < 1e-6 * first.norm()


def test_nan_stays_in_its_tensor():
    grads = random_grads([2304, 2304])
    grads[0][7] = float("nan")
    launch.run(grads, FilterSpec())
    assert grads[0].isnan().all()
    assert not grads[1].isnan().any()


def test_nonfinite_raise_changes_nothing():
    grads = random_grads([2304, 2304])
    grads[1][7] = float("inf")
    before = [grad.clone() for grad in grads]
    with pytest.raises(FloatingPointError, match=r"grads\[1\]"):
        launch.run(grads, FilterSpec(nonfinite="raise"))
    assert all(torch.equal(a, b) for a, b in zip(grads, before, strict=True))


def test_mixed_dtypes_run_in_one_call():
    grads = random_grads([2304], torch.float32) + random_grads([2304], torch.float16)
    exact = relative_errors(grads, FilterSpec())
    assert exact[0] < TOLERANCE[torch.float32]
    assert exact[1] < TOLERANCE[torch.float16]
