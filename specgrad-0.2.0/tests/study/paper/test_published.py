"""The paper's numbers, and that experiments and numbers speak of the same cells."""

from __future__ import annotations

import pytest
from specgrad_study.paper import published
from specgrad_study.paper.presets import PRESETS
from specgrad_study.paper.registry import EXPERIMENTS
from specgrad_study.paper.timing import QUANTITIES

# rows and columns of these are made from measurements
MEASURED = {"spectral-bias", "cka", "time", "settings"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_number_of_the_paper_has_a_cell(name):
    places = {cell.place for cell in EXPERIMENTS[name].cells(PRESETS["paper"]())}
    found = set(published.paper_numbers(name))
    if name == "time":
        places = {(row, f"{column}, {q}") for row, column in places for q in QUANTITIES}
    if name not in {"spectral-bias"}:
        assert found <= places
    if name == "supplement" or EXPERIMENTS[name].ours:
        assert not found, "the paper gives no numbers for these"
    elif name not in MEASURED | {"ratio", "curves"}:
        assert found == places


@pytest.mark.parametrize(
    ("name", "row", "column", "text"),
    [
        ("table1", "FedDyn", "CIFAR-100, alpha 0.6", "42.78 ± 1.47"),
        ("table2", "SCAFFOLD + FFT", "CIFAR-100, DenseNet-121", "64.90 ± 1.22"),
        ("strategies", "Gaussian detrend", "CIFAR-100", "41.53"),
        ("layers", "ViT: attention", "CIFAR-10", "43.29"),
        ("orders", "2D FFT", "CIFAR-100", "31.30 ± 0.93"),
        ("centralised", "alpha 5: + FFT", "CIFAR-10", "86.77"),
        ("near-iid", "FedLWS", "Tiny-ImageNet", "34.75"),
        ("time", "FedAvg + FFT", "Tiny-ImageNet, total s", "2373.36"),
        ("feature-shift", "FedCM", "CIFAR-10-C", "76.86 ± 0.34"),
        ("femnist", "FedAWA + FFT", "active ratio 0.1", "82.03"),
        ("spectral-bias", "alpha 0.1: first band, %", "full pass", "71.61"),
    ],
)
def test_samples_from_every_table(name, row, column, text):
    assert str(published.paper_numbers(name)[row, column]) == text


def test_what_the_paper_marks_as_failed_is_no_number():
    assert ("FedCM", "Tiny-ImageNet, s/round") not in published.paper_numbers("time")
