"""The band projection, the dense basis and the stacked rest against the float64 reference."""

import pytest
import torch
from representatives import only
from triton_tools.compare import TOLERANCE, random_grads, relative_errors, worst_error

from specgrad_kernels.backends import triton
from specgrad_kernels.backends.triton import launch
from specgrad_kernels.spec import FilterSpec


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("dtype", only(list(TOLERANCE)[:3], TOLERANCE), ids=str)
def test_lengths_of_every_kind(dtype):
    """Identity, circulants with and without a window, lines of every length."""
    lengths = [1, 3, 40, 97, 432, 1728, 4608, 18432 if dtype.itemsize > 2 else 2304]
    assert worst_error(random_grads(lengths, dtype), FilterSpec()) < TOLERANCE[dtype]


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize(
    ("dtype", "middle"),
    only([(torch.float32, 3)], [(torch.float32, 3), (torch.float32, 6), (torch.float64, 3)]),
    ids=str,
)
def test_split_lines(dtype, middle, limit_grid):
    limit_grid(lines=(3,), middles=(middle,))
    length = 4 * 6 << (middle + 3)
    assert triton.explain(FilterSpec(), length, 0, dtype)[0] == f"band 4 x 6 x {1 << middle} x 8"
    assert triton.launches(FilterSpec(), [(length, dtype)]) == "5 launches"
    grads = random_grads([length], dtype)
    assert max(relative_errors(grads, FilterSpec())) < TOLERANCE[dtype]


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("ratio", only([0.01, 0.45], [0.01, 0.1, 0.2, 0.3, 0.45]))
def test_ratios(ratio):
    grads = random_grads([432, 2304])
    assert max(relative_errors(grads, FilterSpec(ratio=ratio))) < TOLERANCE[torch.float32]


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("ratio", only([0.05], [0.02, 0.05, 0.13]))
def test_awkward_small_lengths(ratio):
    """Cells of 2 to 27 samples, in circulants and in lines, and what is left alone."""
    grads = random_grads([24, 81, 160, 312, 540, 648])
    assert worst_error(grads, FilterSpec(ratio=ratio)) < TOLERANCE[torch.float32]


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("length", only([432], [432, 2304]))
def test_waves_of_the_band_stay_below_the_promise(length):
    """Where nothing is left of a gradient, the error is all there is; a constant is the worst."""
    spec = FilterSpec(batch_dims=1)
    cutoff = spec.cutoff(length, 0)
    promise = triton.explain(spec, length, 0, torch.float32)[1]
    phases = torch.arange(length, dtype=torch.float64) / length * 2 * torch.pi
    waves = [(phases * k + 0.3).cos() for k in {1, cutoff // 2, cutoff - 1, cutoff}]
    waves += [torch.full((length,), size, dtype=torch.float64) for size in (1.1, 1.3, 1.7)]
    for wave in waves:
        assert worst_error([wave.float()[None]], spec) < promise


SOFT_EDGE = FilterSpec("spectrum", gains=[(0, 0.2), (0.02, 0.5), (0.05, 1)])
LOW_PASS = FilterSpec("spectrum", gains=[(0.3, 1.5), (0.5, 0)])


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("spec", [SOFT_EDGE, LOW_PASS], ids=["soft edge", "low-pass"])
def test_spectra(spec):
    grads = random_grads([432, 64])
    promise = max(triton.explain(spec, grad.numel(), 0, grad.dtype)[1] for grad in grads)
    assert worst_error(grads, spec) < min(promise, 1.5 * TOLERANCE[torch.float32])


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
