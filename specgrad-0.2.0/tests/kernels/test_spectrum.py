"""``spectrum`` against the spectrum multiplied in float64."""

import numpy as np
import pytest
import torch
from helpers import DTYPES, TOLERANCE, distance, filtered
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specgrad_kernels import FilterPlan, FilterSpec, filter_grads_
from specgrad_kernels.kinds.spectrum import gains_of

SHAPES = {
    "step": [(0.05, 0.0), (0.05, 1.0)],
    "soft edge": [(0, 0), (0.08, 1)],
    "low-pass": [(0.3, 1), (0.3, 0)],
    "band-pass": [(0.1, 0), (0.1, 1), (0.4, 1), (0.6, 0)],
    "louder": [(0, 2), (0.05, 1)],
    "half": [(0.5, 0.5)],
}


def multiplied(grad, gains):
    spectrum = np.fft.rfft(grad.double().flatten().numpy())
    exact = np.fft.irfft(spectrum * gains_of(tuple(gains), grad.numel()), n=grad.numel())
    return torch.from_numpy(exact).view(grad.shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", [1, 2, 3, 16, 101, 432, 2304, 10_007])
@pytest.mark.parametrize("name", SHAPES)
def test_multiplies_the_spectrum(backend, name, d, dtype):
    grad = torch.randn(d, dtype=torch.float64).to(dtype)
    actual = filtered(grad, method="spectrum", gains=SHAPES[name], backend=backend)
    error = actual.double() - multiplied(grad, SHAPES[name])
    assert error.norm() <= 2 * TOLERANCE[dtype] * grad.double().norm()


BREAKPOINTS = st.lists(
    st.tuples(st.floats(0, 1, width=32), st.sampled_from([0.0, 0.25, 1.0, 3.0])), min_size=1
)


@settings(max_examples=60, deadline=None)
@given(
    points=BREAKPOINTS,
    d=st.integers(1, 400) | st.integers(1, 40).map(lambda n: 144 * n),
    dtype=st.sampled_from(DTYPES),
    mean=st.sampled_from([0.0, 30.0]),
    seed=st.integers(0, 1000),
)
@example(points=[(0.0, 0.0)], d=193, dtype=torch.float64, mean=30.0, seed=1)
def test_any_gains_keep_their_promise(points, d, dtype, mean, seed):
    gains = sorted(points, key=lambda point: point[0])
    noise = torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    grad = (noise + mean).to(dtype)
    plan = FilterPlan(
        [("w", torch.nn.Parameter(grad.clone()))], FilterSpec("spectrum", gains=gains)
    )
    plan.filter_grads_([actual := grad.clone()])
    # float64 is judged as well, so the truth has more digits, and no gains of 1 are rounded
    exact = grad.double().numpy().astype(np.longdouble)
    removed = np.fft.rfft(exact) * (1 - gains_of(tuple(gains), d))
    error = actual.double().numpy() - (exact - np.fft.irfft(removed, n=d))
    assert np.linalg.norm(error) <= plan.layers[0].error_bound * float(grad.double().norm())


def test_gains_between_and_beyond_breakpoints():
    assert gains_of(((0.25, 0.0), (0.75, 1.0)), 8).tolist() == [0, 0, 0.5, 1, 1]
    assert gains_of(((0.5, 0.0), (0.5, 1.0)), 8).tolist() == [0, 0, 1, 1, 1]


def test_fft_is_a_step(backend):
    d = 2304
    cutoff = FilterSpec().cutoff(d)
    edge = 2 * cutoff / d
    grad = torch.randn(d)
    step = filtered(grad, method="spectrum", gains=[(edge, 0), (edge, 1)], backend=backend)
    assert distance(step, filtered(grad, backend=backend).double()) < 1e-6


@pytest.mark.parametrize("gains", [SHAPES["step"], SHAPES["soft edge"], SHAPES["louder"]], ids=str)
def test_a_low_band_takes_the_fast_path(native, gains):
    layer = torch.nn.Parameter(torch.zeros(64, 64, 3, 3))
    plan = FilterPlan([("conv", layer)], FilterSpec("spectrum", gains=gains), backend="cpp")
    assert plan.layers[0].strategy.startswith("band")


def test_gains_of_one_leave_the_gradient_alone(backend):
    grad = torch.randn(500)
    assert torch.equal(filtered(grad, method="spectrum", gains=[(0, 1)], backend=backend), grad)


@pytest.mark.parametrize(
    ("gains", "match"),
    [
        (None, "method 'spectrum' needs gains"),
        ([], "gains must be pairs of a frequency"),
        ([0.1, 0.2], "gains must be pairs"),
        ([(0.1, 1), (1.2, 1)], "gains must be pairs"),
        ([(0.1, -1)], "gains must be pairs"),
        ([(0.1, float("nan"))], "gains must be pairs"),
        ([("0.1", 1)], "gains must be pairs"),
        ([(0.5, 1), (0.1, 0)], "in the order of their frequencies"),
    ],
    ids=str,
)
def test_what_is_no_gain_is_refused(gains, match):
    grad = torch.randn(100)
    before = grad.clone()
    with pytest.raises(ValueError, match=match):
        filter_grads_([grad], method="spectrum", gains=gains)
    assert torch.equal(grad, before)


def test_a_plan_tells_which_bins_change():
    layer = torch.nn.Parameter(torch.zeros(64, 64, 3, 3))

    def bins(**options):
        return FilterPlan([("w", layer)], FilterSpec(**options)).layers[0].cutoff

    assert bins(method="spectrum", gains=[(0.1, 0), (0.1, 1)]) == 1844
    assert bins(method="spectrum", gains=[(0.5, 1), (0.5, 0)]) == 18433
    assert bins(method="centralize") == 1
    assert bins(method="fft", ratio=0.1) == 1843
