"""The reference equations against closed forms and plain numpy."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgrad_kernels import FilterSpec, filter_grads_, reference


def equation(g, method, **fields):
    """A kind's equation in plain PyTorch, for signals along the last dimension."""
    spec = FilterSpec(method, **fields)
    rows = g.reshape(-1, g.shape[-1])
    parameters = spec.kind.parameters(spec, rows.shape[1:], 0)
    return spec.kind.reference(rows, parameters, spec).reshape(g.shape)


@pytest.mark.parametrize(
    ("ratio", "d", "expected"),
    [
        (0.05, 36864, 921),
        (0.05, 432, 10),
        (0.05, 37, 0),
        (0.05, 38, 1),
        (0.29, 198, 29),  # 0.29 * 100 is 28.999... in binary
        (0.35, 38, 7),
        (0.0, 10, 0),
        (0.999, 2000, 999),
    ],
)
def test_cutoff_is_exact(ratio, d, expected):
    assert reference.cutoff(ratio, d) == expected


@given(st.integers(0, 999), st.integers(1, 10**6))
def test_cutoff_equals_integer_arithmetic(thousandths, d):
    assert reference.cutoff(thousandths / 1000, d) == thousandths * (d // 2 + 1) // 1000


def test_default_widths_are_the_specified_ones():
    ratios = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    assert [reference.default_window(r) for r in ratios] == [121, 61, 25, 13, 7, 3]
    sigmas = [reference.default_sigma(r) for r in ratios]
    np.testing.assert_allclose(sigmas, [37.478, 18.739, 7.4956, 3.7478, 1.8739, 0.74956])


@given(st.integers(1, 400), st.floats(0, 0.99))
def test_suppress_low_is_the_masked_spectrum(d, ratio):
    g = torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    cutoff = reference.cutoff(ratio, d)
    spectrum = np.fft.rfft(g.numpy())
    spectrum[:cutoff] = 0
    expected = np.fft.irfft(spectrum, n=d) if d > 1 else g.numpy()
    np.testing.assert_allclose(reference.suppress_low(g, cutoff), expected, atol=1e-12)


@pytest.mark.parametrize("d", [64, 65])
def test_low_and_high_suppression_are_complementary_bands(d):
    g = torch.randn(d, dtype=torch.float64)
    bins = reference.num_bins(d)
    low_removed = reference.suppress_low(g, 10)
    rest_removed = equation(g, "fft_high", ratio=Fraction(bins - 10, bins))
    torch.testing.assert_close(low_removed + rest_removed, g)


def test_random_bins_depend_on_seed_and_length_alone():
    g = torch.randn(2, 500, dtype=torch.float64)
    first = equation(g, "random", ratio=0.08, seed=3)
    torch.testing.assert_close(first[0], equation(g[0], "random", ratio=0.08, seed=3))
    zeroed = torch.fft.rfft(first[0]).abs() < 1e-9
    assert int(zeroed.sum()) == 20
    assert not torch.equal(first, equation(g, "random", ratio=0.08, seed=4))


def test_rescale_keeps_direction_and_takes_the_filtered_norm():
    g = torch.randn(300, dtype=torch.float64)
    scaled = equation(g, "l2", ratio=0.2)
    assert torch.cosine_similarity(scaled, g, dim=0) == pytest.approx(1)
    assert scaled.norm() == pytest.approx(reference.suppress_low(g, 30).norm().item())
    assert torch.equal(equation(torch.zeros(100), "l2", ratio=0.1), torch.zeros(100))


def test_2d_suppression_removes_the_kernel_mean():
    kernels = torch.randn(4, 3, 3, 3, dtype=torch.float64)
    spec = FilterSpec("fft2d", ratio=0.05)
    filtered = spec.kind.reference(kernels.view(1, -1), (spec.ratio, (3, 3)), spec)
    filtered = filtered.view_as(kernels)
    torch.testing.assert_close(filtered, kernels - kernels.mean((-1, -2), keepdim=True))


@pytest.mark.parametrize("boundary", ["count", "circular", "reflect", "replicate"])
@pytest.mark.parametrize(("d", "radius"), [(50, 3), (50, 49), (7, 12), (1, 4)])
def test_smoothing_against_a_loop(boundary, d, radius):
    g = torch.randn(d, dtype=torch.float64)
    weights = torch.rand(2 * radius + 1, dtype=torch.float64)
    weights = (weights + weights.flip(0)) / (2 * weights.sum())
    expected = []
    for i in range(d):
        total = inside = 0.0
        for j, weight in zip(range(i - radius, i + radius + 1), weights.tolist(), strict=True):
            index = j
            if not 0 <= j < d:
                if boundary == "count":
                    continue
                if boundary == "circular":
                    index = j % d
                elif boundary == "reflect" and radius < d:
                    index = -j if j < 0 else 2 * (d - 1) - j
                else:
                    index = min(max(j, 0), d - 1)
            total += weight * g[index].item()
            inside += weight
        expected.append(total / inside if boundary == "count" else total)
    actual = reference.smooth(g, weights, boundary)
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_circular_detrends_have_the_closed_form_response():
    d, n = 1200, torch.arange(1200, dtype=torch.float64)
    for k in (0, 3, 30, 77):
        f = k / d
        wave = torch.cos(2 * math.pi * f * n)
        box = math.sin(math.pi * f * 25) / (25 * math.sin(math.pi * f)) if k else 1.0
        lap = equation(wave, "lap", window=25, boundary="circular")
        torch.testing.assert_close(lap, (1 - box) * wave, atol=1e-12, rtol=0)
        gauss = math.exp(-2 * (math.pi * 7.5 * f) ** 2)
        torch.testing.assert_close(
            equation(wave, "gaussian", sigma=7.5, boundary="circular"),
            (1 - gauss) * wave,
            atol=2e-4,  # the Gaussian is cut at 4 sigma
            rtol=0,
        )


@pytest.mark.parametrize("boundary", ["count", "circular", "reflect", "replicate"])
def test_constants_vanish_up_to_the_ends(boundary):
    constant = torch.full((90,), 3.7, dtype=torch.float64)
    for method, width in (("lap", {"window": 25}), ("gaussian", {"sigma": 7.5})):
        assert equation(constant, method, boundary=boundary, **width).abs().max() < 1e-14


@pytest.mark.parametrize("seed", [2**62, -(2**70), 10**40, -1])
def test_seeds_of_any_size(seed, backend):
    options = (
        {"order": f"random:{abs(seed)}", "backend": backend},
        {"method": "random", "seed": seed},
    )
    for option in options:
        grads = [torch.ones(300).cumsum(0) for _ in range(2)]
        for grad in grads:
            filter_grads_([grad], **option)
        assert torch.equal(*grads)
        assert not torch.equal(grads[0], torch.ones(300).cumsum(0))
