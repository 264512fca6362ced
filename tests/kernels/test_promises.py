"""No gradient exceeds the promised error: waves of every frequency, and a search for worse."""

import numpy as np
import pytest
import torch
from helpers import DTYPES, needs_long_double
from representatives import only

from benchmarks.waves import (
    KINDS,
    bound_of,
    filtered,
    gains,
    lengths,
    share_of_promise,
    waves,
    wide,
)
from specgrad_kernels import FilterSpec, filter_grads_
from specgrad_kernels.kinds import BOUNDARIES


def exactly(signals, factor):
    return np.fft.irfft(np.fft.rfft(signals) * factor, n=signals.shape[-1])


def chosen_bins(d):
    """All of a short signal; of a long one every bin near an edge, and fifty of the others."""
    bins = np.arange(d // 2 + 1)
    if d <= 2500:
        return bins
    edges = [FilterSpec(ratio=ratio).cutoff(d) for ratio in (0.05, 0.3)]
    near = [bins[edge - 8 : edge + 8] for edge in edges]
    return np.unique(np.concatenate([bins[:: len(bins) // 50], *near]))


@needs_long_double
@pytest.mark.parametrize("d", only([433, 432], [433, 432, 2304, 4608, 36864, 10_007, 8 * 2027]))
def test_no_wave_exceeds_the_bound(backends, d):
    for name, backend, dtype, share in share_of_promise(d, chosen_bins(d), backends, KINDS):
        assert np.all(share <= 1), (name, backend, dtype, share.max())


@needs_long_double
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", only([432, 1009], [432, 1009, 36864]))
@pytest.mark.parametrize("name", KINDS)
def test_no_search_finds_worse(backend, name, d, dtype):
    """The error of a signal, filtered in its turn, points to where the error is largest."""
    spec = FilterSpec(**KINDS[name])
    bound, factor = bound_of(spec, d, dtype, backend), gains(spec, d)
    generator = torch.Generator().manual_seed(d)
    signals = torch.randn(4, d, dtype=torch.float64, generator=generator)
    for _ in range(6):
        signals = (signals / signals.norm(dim=-1, keepdim=True)).to(dtype)
        given = signals.double().numpy().astype(wide if dtype == torch.float64 else np.float64)
        error = filtered(signals, spec, backend) - exactly(given, factor)
        assert np.all(lengths(error) <= bound * lengths(given))
        signals = torch.from_numpy(error.astype(np.float64)) + 1e-30


@needs_long_double
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("d", "cutoff"), [(205, 24), (267, 32), (2304, 256)])
def test_no_impulse_exceeds_the_bound_of_a_basis(native, d, cutoff, dtype):
    """Every wave is subtracted from the same sample, which may round the same way each time."""
    spec = FilterSpec(ratio=(cutoff + 0.5) / (d // 2 + 1), strategy="dense")
    strategy, bound, _ = native.explain(spec, d, 0, dtype)
    assert (strategy, spec.cutoff(d)) == ("dense", cutoff)
    places = sorted({0, 1, d // 8, d // 5, 2 * d // 5, d // 3, d // 2, 4 * d // 5, d - 1})
    for height in (1.0, 1.3, 0.75):
        signals = (height * torch.eye(d, dtype=torch.float64)[places]).to(dtype)
        given = signals.double().numpy().astype(wide)
        filter_grads_([signals], ratio=spec.ratio, strategy="dense", batch_dims=1, backend="cpp")
        error = signals.double().numpy().astype(wide) - exactly(given, gains(spec, d))
        assert np.all(lengths(error) <= bound * lengths(given))


HALVES = [torch.float32, torch.bfloat16, torch.float16]


def averaged(signals, spec):
    parameters = spec.kind.parameters(spec, signals.shape[1:], 0)
    return spec.kind.reference(signals.double(), parameters, spec)


@pytest.mark.parametrize("dtype", only(HALVES[:2], HALVES), ids=str)
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(
    ("method", "width"),
    [
        ("lap", 3),
        ("lap", 25),
        ("lap", 401),
        ("gaussian", 0.35),
        ("gaussian", 1.0),
        ("gaussian", 60),
    ],
)
def test_averages_may_lengthen_a_gradient(backend, method, width, boundary, dtype):
    field = "window" if method == "lap" else "sigma"
    spec = FilterSpec(method, boundary=boundary, **{field: width})
    for d in (2, 7, 1009):
        bound = bound_of(spec, d, dtype, backend)
        kinds = [
            torch.from_numpy(
                waves(d, np.arange(0, d // 2 + 1, max(1, d // 30))).astype(np.float64)
            ),
            # impulses: at the ends they count most
            torch.eye(d, dtype=torch.float64)[[*range(d)[:6], d // 2, *range(d)[-6:]]],
            torch.randn(5, d, dtype=torch.float64),
            torch.tensor([1.0390625, -0.466796875], dtype=torch.float64).repeat(d)[None, :d],
        ]
        signals = torch.cat(kinds).to(dtype)
        exact = averaged(signals, spec)
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
