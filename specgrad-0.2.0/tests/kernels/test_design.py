"""The one design: its norms against operators written out as matrices, its gains against sums."""

import numpy as np
import pytest

from specgrad_kernels import design


def low_band(d, removed):
    """The exact operator, ``[d, d]``: ``removed`` of the first bins."""
    spectrum = np.zeros(d // 2 + 1)
    spectrum[: len(removed)] = removed
    return np.fft.irfft(spectrum[:, None] * np.fft.rfft(np.eye(d), axis=0), n=d, axis=0)


def on_coarse_grid(taps, hop, d, removed):
    """Spread, circulant and transposed spread as one matrix."""
    cells = d // hop
    spread = np.zeros((cells, d))
    for cell in range(cells):
        places = (cell * hop + np.arange(len(taps))) % d
        np.add.at(spread[cell], places, taps)
    gains = np.zeros(cells // 2 + 1)
    gains[: len(removed)] = design.window_gains(taps, hop, d, removed) * cells
    circulant = np.fft.irfft(gains[:, None] * np.fft.rfft(spread, axis=0), n=cells, axis=0)
    return spread.T @ circulant


@pytest.mark.parametrize(
    ("d", "cutoff", "hop", "width"),
    [(432, 10, 8, 7), (432, 10, 8, 4), (480, 24, 4, 6), (600, 90, 2, 5), (432, 1, 16, 5)],
)
def test_alias_norm_bounds_the_operator_closely(d, cutoff, hop, width):
    taps = design.window_taps(hop, width, d / hop / (2 * cutoff))
    removed = np.ones(cutoff)
    error = on_coarse_grid(taps, hop, d, removed) - low_band(d, removed)
    exact = np.linalg.norm(error, 2)
    bound = design.alias_norm(taps, hop, (cutoff - 1) / d)
    assert exact <= bound + 1e-14
    if cutoff == 10:
        assert bound <= 1.1 * exact


@pytest.mark.parametrize(
    ("d", "cutoff", "hop"), [(9216, 230, 8), (9216, 115, 16), (36864, 184, 32), (4608, 900, 2)]
)
@pytest.mark.parametrize("width", [4, 6, 7, 8])
def test_no_frequency_of_the_band_exceeds_the_norm(d, cutoff, hop, width):
    """Every bin, not a sample of them: peaks lie between any few."""
    taps = design.window_taps(hop, width, d / hop / (2 * cutoff))
    bins = np.arange(cutoff)
    images = np.stack(
        [design.window_response(taps, bins / d + image / hop) for image in range(hop)]
    )
    beside = np.sqrt((images[1:] ** 2).sum(axis=0)) / images[0]
    exact = beside.max()
    bound = design.alias_norm(taps, hop, (cutoff - 1) / d)
    assert exact <= bound <= 1.2 * exact


@pytest.mark.parametrize(("d", "cutoff"), [(2304, 57), (36864, 921), (36864, 100)])
def test_a_mean_hardly_leaks(d, cutoff):
    """It can be 10^4 times larger than all the rest, and its leaks with it."""
    chosen = design.remove_low_band(d, np.ones(cutoff), False, lanes=8, strategy="band")
    images = design.window_response(chosen.taps, np.arange(chosen.hop) / chosen.hop)
    assert np.linalg.norm(images[1:]) <= 1e-8 * images[0]


def test_a_soft_edge_is_removed_by_its_share():
    d, hop, removed = 960, 4, np.linspace(1, 0.02, 40)
    taps = design.window_taps(hop, 9, d / hop / 80)
    error = on_coarse_grid(taps, hop, d, removed) - low_band(d, removed)
    assert np.linalg.norm(error, 2) <= design.alias_norm(taps, hop, 39 / d) + 1e-14


def test_response_of_long_bands():
    taps = design.window_taps(16, 7, 2.5)
    bins = np.array([0, 1, 999, 400_000, 419_999])
    exact = design.window_response(taps, bins / 2**24)
    assert np.allclose(design.band_response(taps, 2**24, 420_000)[bins], exact, rtol=1e-13)


def test_padded_grid_yields_what_is_left_of_the_low_band():
    d, removed = 101, np.ones(9)
    chosen = design.remove_low_band(d, removed, double=True, lanes=4, strategy="full")
    assert chosen.strategy == "padded"
    size = chosen.grid.size
    assert size >= 2 * d - 1
    spectrum = np.fft.rfft(np.eye(size)[:, :d], axis=0) * (chosen.gains * size)[:, None]
    left = np.eye(d) - low_band(d, removed)
    assert np.allclose(np.fft.irfft(spectrum, n=size, axis=0)[:d], left)


@pytest.mark.parametrize(("double", "width"), [(False, 7), (True, 13)])
def test_windows_are_narrower_than_kaiser_bessel(double, width):
    """At the oversampling of ResNets with ratio 0.05, and quiet at every image of the band."""
    edge, tolerance = 1 / 40, design.ALIAS_TOLERANCE[double]
    taps = design.window_taps(8, width, 2.5)
    leak = design.alias_norm(taps, 8, edge)
    assert leak < tolerance
    assert design.alias_norm(design._kaiser_bessel(8, width, 2.5), 8, edge) > max(
        5 * leak, tolerance
    )
    assert taps.min() > 0
    assert design.amplification(taps, edge) < 4


@pytest.mark.parametrize("d", [10_007, 50_257, 100_003, 50_257 * 768])
def test_padding_is_short(d):
    least = 2 * d - 1
    size = design.remove_low_band(d, np.ones(d // 8), True, 8, "full").grid.size
    assert least <= size < 1.2 * least


def test_a_large_prime_is_padded_on_the_coarse_grid():
    chosen = design.remove_low_band(50_257 * 768, np.ones(960_000), False, 8)
    assert chosen.strategy == "band"
    assert chosen.grid.size < 2.4 * chosen.cells < chosen.d / 3


def test_padding_that_would_fill_the_memory_is_left_out():
    size = 2**28 + 16  # with 97, 257 and 673
    assert design._smooth_grid(size, 8).size == size


def test_full_spectrum_keeps_later_bins():
    chosen = design.remove_low_band(96, np.ones(5), double=True, lanes=4, strategy="full")
    assert chosen.strategy == "full"
    assert (chosen.gains * 96).tolist() == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("d", [1, 2, 27, 432, 2304, 36864, 10_007, 100_003])
@pytest.mark.parametrize("cutoff", [0, 1, 57])
def test_every_length_has_a_design(d, cutoff, lanes, double):
    if cutoff > d // 2:
        return
    chosen = design.remove_low_band(d, np.ones(cutoff), double, lanes)
    assert (chosen.strategy == "identity") == (cutoff == 0)
    assert chosen.error_bound <= (2e-6 if not double else 2e-14)
    assert chosen.grid.size >= len(chosen.gains) - 1


def test_a_strategy_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="strategy 'band' does not fit a layer of 101 samples"):
        design.remove_low_band(101, np.ones(4), False, 8, "band")
    with pytest.raises(ValueError, match="strategy 'dense' does not fit"):
        design.remove_low_band(2**24, np.ones(4), False, 8, "dense")
