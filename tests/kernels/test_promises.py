"""No gradient exceeds the promised error: waves of every frequency, and a search for worse."""

import numpy as np
import pytest
import torch
from helpers import DTYPES

from specgrad_kernels import FilterSpec, filter_grads_
from specgrad_kernels.backends import BACKENDS
from specgrad_kernels.kinds import BOUNDARIES
from specgrad_kernels.kinds.spectrum import gains_of

wide = np.longdouble if np.finfo(np.longdouble).eps < 1e-18 else np.float64
KINDS = {
    "fft": {},
    "fft of much": {"ratio": 0.3},
    "soft edge": {"method": "spectrum", "gains": ((0.0, 0.0), (0.08, 1.0))},
    "band-pass": {"method": "spectrum", "gains": ((0.2, 0.0), (0.3, 2.0), (0.9, 0.5))},
    "random": {"method": "random", "seed": 3},
    "centralize": {"method": "centralize", "group_dims": 0},
}


def gains(spec, d):
    """The factor of every bin, from the definitions alone."""
    if spec.method == "spectrum":
        return gains_of(spec.gains, d)
    kept = np.ones(d // 2 + 1)
    if spec.method == "random":
        from specgrad_kernels.reference import random_bins

        kept[random_bins(d, spec.cutoff(d), spec.seed).numpy()] = 0
    else:
        kept[: 1 if spec.method == "centralize" else spec.cutoff(d)] = 0
    return kept


def exactly(signals, factor):
    return np.fft.irfft(np.fft.rfft(signals) * factor, n=signals.shape[-1])


def errors(signals, spec, backend):
    """Error vectors of ``[count, d]`` signals, and the signals as the dtype holds them."""
    given = signals.double().numpy().astype(wide)
    filtered = signals.clone()
    filter_grads_(list(filtered), backend=backend, **options_of(spec))
    return filtered.double().numpy() - exactly(given, gains(spec, given.shape[-1])), given


def options_of(spec):
    names = ("method", "ratio", "gains", "seed", "group_dims")
    return {name: getattr(spec, name) for name in names}


def bound_of(spec, d, dtype, backend):
    (module,) = [module for module in BACKENDS if backend == module.NAME]
    return module.explain(spec, d, 0, dtype)[1]


def waves(d, bins, dtype):
    samples = np.arange(d)
    turns = np.outer(bins, samples) % d / d
    return torch.from_numpy(np.cos(2 * np.pi * turns + 0.3)).to(dtype)


def lengths(value):
    return np.linalg.norm(value.astype(np.float64), axis=-1)


@pytest.mark.skipif(wide is np.float64, reason="long double is no wider than double here")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "d",
    [
        433,
        432,
        pytest.param(2304, marks=pytest.mark.slow),
        pytest.param(4608, marks=pytest.mark.slow),
        pytest.param(36864, marks=pytest.mark.slow),
        pytest.param(10_007, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", KINDS)
def test_no_wave_exceeds_the_bound(backend, name, d, dtype):
    spec = FilterSpec(**KINDS[name])
    bound = bound_of(spec, d, dtype, backend)
    bins = np.arange(d // 2 + 1)
    if d > 5000:  # every bin near the edge, a hundred of the others
        edge = spec.cutoff(d)
        bins = np.unique(np.concatenate([bins[:: len(bins) // 100], bins[edge - 8 : edge + 8]]))
    for part in np.array_split(bins, -(-len(bins) * d // 2**20)):
        error, given = errors(waves(d, part, dtype), spec, backend)
        assert np.all(lengths(error) <= bound * lengths(given))


@pytest.mark.skipif(wide is np.float64, reason="long double is no wider than double here")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "d", [432, *(pytest.param(d, marks=pytest.mark.slow) for d in (1009, 36864))]
)
@pytest.mark.parametrize("name", KINDS)
def test_no_search_finds_worse(backend, name, d, dtype):
    """The error of a signal, filtered in its turn, points to where the error is largest."""
    spec = FilterSpec(**KINDS[name])
    bound = bound_of(spec, d, dtype, backend)
    generator = torch.Generator().manual_seed(d)
    signals = torch.randn(4, d, dtype=torch.float64, generator=generator)
    for _ in range(6):
        error, given = errors(
            (signals / signals.norm(dim=-1, keepdim=True)).to(dtype), spec, backend
        )
        assert np.all(lengths(error) <= bound * lengths(given))
        signals = torch.from_numpy(error.astype(np.float64)) + 1e-30


def averaged(signals, method, width, boundary):
    from specgrad_kernels import reference

    detrend = reference.lap_detrend if method == "lap" else reference.gaussian_detrend
    return detrend(signals.double(), width, boundary)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(
    ("method", "width"),
    [("lap", 3), ("lap", 25), ("lap", 401), ("gaussian", 1.0), ("gaussian", 60)],
)
def test_averages_may_lengthen_a_gradient(backend, method, width, boundary, dtype):
    field = "window" if method == "lap" else "sigma"
    spec = FilterSpec(method, boundary=boundary, **{field: width})
    for d in (2, 7, 1009):
        bound = bound_of(spec, d, dtype, backend)
        kinds = [
            waves(d, np.arange(0, d // 2 + 1, max(1, d // 60)), torch.float64),
            torch.eye(d, dtype=torch.float64)[:: max(1, d // 60)],  # at the ends they count most
            torch.randn(5, d, dtype=torch.float64),
            torch.tensor([1.0390625, -0.466796875], dtype=torch.float64).repeat(d)[None, :d],
        ]
        signals = torch.cat(kinds).to(dtype)
        exact = averaged(signals, method, width, boundary)
        filtered = signals.clone()
        filter_grads_(
            [filtered],
            method=method,
            boundary=boundary,
            batch_dims=1,
            backend=backend,
            **{field: width},
        )
        error = (filtered.double() - exact).norm(dim=-1)
        assert torch.all(error <= bound * signals.double().norm(dim=-1))
