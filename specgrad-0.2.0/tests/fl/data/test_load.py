"""The front door: names, options, digits, and the checks that all data sets share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from specgrad_data import DataError, catalog, default_root, load
from specgrad_data.dataset import Split, build, channel_statistics, stratified_split


def test_digits_are_scaled_split_and_stratified():
    digits = load("digits")
    assert digits.train_x.dtype == torch.uint8
    assert digits.train_x.shape == (1438, 1, 8, 8)
    assert digits.test_x.shape == (359, 1, 8, 8)
    assert int(digits.train_x.max()) == 255
    assert digits.train_y.dtype == torch.int64
    assert torch.bincount(digits.test_y).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert (digits.augment_pad, digits.flip, digits.writers) == (0, False, None)
    assert not digits.is_text
    scaled = digits.train_x.double() / 255
    assert digits.mean[0] == pytest.approx(float(scaled.mean()))
    assert digits.std[0] == pytest.approx(float(scaled.std(correction=0)))


def test_digits_do_not_change():
    assert load("digits").fingerprint == load("digits").fingerprint == "e428e9848eba59bc"


@pytest.mark.parametrize("name", [e.name for e in catalog() if e.name != "digits"])
def test_missing_data_say_what_to_put_where(name: str, tmp_path: Path):
    for root in (tmp_path / "absent", tmp_path):
        (tmp_path / name).mkdir(exist_ok=True)
        with pytest.raises(DataError) as raised:
            load(name, root)
        message = str(raised.value)
        assert str(root / name) in message
        assert f"specgrad-fl data fetch {name}" in message or "LEAF" in message


def test_names_and_options_that_do_not_exist(tmp_path: Path):
    with pytest.raises(DataError, match="did you mean 'cifar100'"):
        load("cifar-100", tmp_path)
    with pytest.raises(DataError, match="choose one of bloodmnist, cifar10,"):
        load("zzz", tmp_path)
    with pytest.raises(
        DataError, match="femnist has no option 'fractoin'; did you mean 'fraction'"
    ):
        load("femnist", tmp_path, fractoin=0.1)
    with pytest.raises(DataError, match="digits has no option 'size'; choose one of corr"):
        load("digits", tmp_path, size=8)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("femnist", "seed", -1),
        ("femnist", "seed", 1.5),
        ("femnist", "seed", True),
        ("femnist", "fraction", "half"),
        ("cifar10_c", "severity", "3"),
        ("cifar10_c", "corruptions", 7),
        ("cifar10_c", "corruptions", [7]),
        ("npz:a.npz", "flip", 1),
        ("npz:a.npz", "channels", None),
    ],
)
def test_options_of_another_type_are_refused(name: str, option: str, value: object, tmp_path: Path):
    with pytest.raises(DataError, match=f"^{option} of {name} is .*; choose "):
        load(name, tmp_path, **{option: value})


def test_root_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("SPECGRAD_DATA", raising=False)
    assert default_root() == Path("data")
    monkeypatch.setenv("SPECGRAD_DATA", str(tmp_path))
    with pytest.raises(DataError, match=str(tmp_path / "bloodmnist")):
        load("bloodmnist")


def images(count: int = 4, channels: int = 1) -> np.ndarray:
    return np.arange(count * channels * 4, dtype=np.uint8).reshape(count, channels, 2, 2)


@pytest.mark.parametrize(
    ("x", "y", "complaint"),
    [
        (images().astype(np.float32), [0, 1, 1, 0], "dtype float32; images must be uint8"),
        (images()[:, 0], [0, 1, 1, 0], r"shape \(4, 2, 2\); expected \[N, C, H, W\]"),
        (images(0), [], r"shape \(0, 1, 2, 2\)"),
        (images(), [0, 1, 2, 0], "go from 0 to 2; expected 0 to 1"),
        (images(), [0, -1, 1, 0], "go from -1 to 1; expected 0 to 1"),
        (images(), [0, 1, 1], r"shape \(3,\)"),
        (images(), [0.0, 1.0, 1.0, 0.0], "dtype float64; expected one integer label"),
    ],
)
def test_samples_that_are_refused(x: np.ndarray, y: list[int], complaint: str):
    good = Split(images(), np.array([0, 1, 1, 0]))
    bad = Split(x, np.array(y, dtype=None if y else np.int64))
    with pytest.raises(DataError, match="the train part of toy.*" + complaint):
        build("toy", bad, good, num_classes=2)
    with pytest.raises(DataError, match="the test part of toy.*" + complaint):
        build("toy", good, bad, num_classes=2)


def test_parts_that_do_not_fit_together():
    good = Split(images(), np.array([0, 1, 1, 0]))
    with pytest.raises(DataError, match=r"images of shape \(3, 2, 2\), where \(1, 2, 2\)"):
        build("toy", good, Split(images(4, 3), good.y), num_classes=2)
    with pytest.raises(DataError, match=r"where \(3, 32, 32\) was expected"):
        build("toy", good, good, num_classes=2, shape=(3, 32, 32))
    with pytest.raises(DataError, match="names 3 writers for 4 training samples"):
        build("toy", Split(good.x, good.y, np.array([0, 1, 2])), good, num_classes=2)
    with pytest.raises(DataError, match="constant in one channel"):
        build("toy", Split(images() * 0, good.y), good, num_classes=2)


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        (np.array([[0, 9]]), "go from 0 to 9; expected 0 to 8"),
        (np.array([[-1, 1]]), "go from -1 to 1"),
        (np.array([[0.5, 1]]), "dtype float64"),
        (np.array([1, 2]), r"shape \(2,\)"),
        (np.zeros((0, 5), np.int64), r"shape \(0, 5\)"),
    ],
)
def test_tokens_that_are_refused(ids: np.ndarray, complaint: str):
    good = Split(np.array([[1, 2]]), np.array([0]))
    with pytest.raises(DataError, match=complaint):
        build("toy", Split(ids, np.zeros(len(ids), np.int64)), good, num_classes=1, vocabulary=9)


def test_fingerprint_follows_every_tensor():
    x, y = images(), np.array([0, 1, 1, 0])
    base = build("toy", Split(x, y), Split(x, y), num_classes=2)
    assert base.fingerprint == build("toy", Split(x, y), Split(x, y), num_classes=2).fingerprint
    others = [
        build("other", Split(x, y), Split(x, y), num_classes=2),
        build("toy", Split(x[::-1], y), Split(x, y), num_classes=2),
        build("toy", Split(x, y[::-1] * 0), Split(x, y), num_classes=2),
        build("toy", Split(x, y), Split(x, 1 - y), num_classes=2),
        build("toy", Split(x, y, writers=y), Split(x, y), num_classes=2),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 6


@given(arrays.arrays(np.uint8, st.tuples(*[st.integers(1, 5)] * 4)))
def test_channel_statistics_are_those_of_float64(pixels: np.ndarray):
    mean, std = channel_statistics(torch.from_numpy(pixels))
    scaled = pixels.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 2, 3)), atol=1e-12)
    np.testing.assert_allclose(std, scaled.std(axis=(0, 2, 3)), atol=1e-12)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.floats(0.05, 0.95),
    st.integers(0, 2**32),
)
def test_stratified_split_divides_every_class_alike(labels, fraction, seed):
    labels = np.array(labels)
    train, test = stratified_split(labels, fraction, seed)
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label in np.unique(labels):
        size = (labels == label).sum()
        assert abs((labels[test] == label).sum() - fraction * size) <= 0.5


def test_split_without_test_samples_is_refused():
    for fraction in (0, 1, float("nan")):
        with pytest.raises(DataError, match="between 0 and 1"):
            stratified_split(np.array([0, 1]), fraction, 0)
