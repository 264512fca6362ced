"""scikit-learn's digits: 1,797 grey images of 8 x 8 inside its wheel, so nothing is fetched."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specgrad_fl.data.base import DataError, Dataset, Split, build, stratified_split

SPLIT_SEED = 0
TEST_FRACTION = 0.2


def load(folder: Path) -> Dataset:
    """1,438 training and 359 test images; the split is always the same."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError(
            f"digits come inside scikit-learn, which cannot be imported ({error}); install the "
            "extra: pip install 'specgrad[fl]'"
        ) from error
    bunch = load_digits()
    # grey levels are counts 0 .. 16
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    whole = Split(images, bunch.target)
    train, test = stratified_split(whole.y, TEST_FRACTION, SPLIT_SEED)
    return build("digits", whole.take(train), whole.take(test), num_classes=10, shape=(1, 8, 8))
