"""scikit-learn's digits: 1,797 grey images of 8 x 8 inside its wheel, so nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specgrad_data.dataset import Dataset, Split, build, shifted_splits, stratified_split
from specgrad_data.errors import DataError, installing

Array = NDArray[np.float64]
TABLE = "datasets/data/digits.csv.gz"
SPLIT_SEED = 0
TEST_FRACTION = 0.2


def load(folder: Path, corrupted: bool = False) -> Dataset:
    """1,438 training and 359 test images; the split is always the same.

    corrupted: every image under each of five corruptions, in the manner of CIFAR-C, so that
        feature shift can be tried without a download
    """
    package = find_spec("sklearn")
    try:
        if package is None or package.origin is None:
            raise FileNotFoundError("it is not installed")
        # the file alone: the package takes a second to import
        table = np.loadtxt(Path(package.origin).parent / TABLE, np.int64, delimiter=",")
    except OSError as error:
        raise DataError(
            f"digits come inside scikit-learn, and cannot be read there ({error}); "
            + installing("fl")
        ) from error
    # grey levels are counts 0 .. 16
    images = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)[:, None]
    labels = table[:, -1]
    if not corrupted:
        parts = stratified_split(labels, TEST_FRACTION, SPLIT_SEED)
        splits = [Split(images[places], labels[places]) for places in parts]
        return build("digits", *splits, num_classes=10, shape=(1, 8, 8))
    plain = images.astype(np.float64)
    shifted = [np.rint(apply(plain).clip(0, 255)) for apply in CORRUPTIONS.values()]
    train, test = shifted_splits(shifted, labels, TEST_FRACTION, SPLIT_SEED)
    names = tuple(CORRUPTIONS)
    return build("digits", train, test, num_classes=10, shape=(1, 8, 8), domain_names=names)


def _noise(images: Array) -> Array:
    return images + np.random.default_rng(SPLIT_SEED).normal(0, 40, images.shape)


def _blur(images: Array) -> Array:
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    size = images.shape[-1]
    shifts = [padded[..., y : y + size, x : x + size] for y in range(3) for x in range(3)]
    return np.mean(shifts, axis=0)


def _pixels(images: Array) -> Array:
    coarse = (images[..., ::2, ::2] + images[..., 1::2, 1::2]) / 2
    return coarse.repeat(2, axis=-1).repeat(2, axis=-2)


CORRUPTIONS: dict[str, Callable[[Array], Array]] = {
    "noise": _noise,
    "blur": _blur,
    "brightness": lambda images: images + 80,
    "contrast": lambda images: 96 + 0.3 * images,
    "pixels": _pixels,
}
