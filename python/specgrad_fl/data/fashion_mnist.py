"""Fashion-MNIST: four idx files."""

from __future__ import annotations

from pathlib import Path

from specgrad_fl.data.base import Dataset, Split, build
from specgrad_fl.data.files import channels_first, missing
from specgrad_fl.data.idx import find_idx, read_idx

NAME = "fashion_mnist"


def load(folder: Path) -> Dataset:
    """60,000 training and 10,000 test images of 28 x 28, 10 classes."""
    if not folder.is_dir():
        raise missing(NAME, folder)
    return build(
        NAME,
        _read(folder, "train"),
        _read(folder, "t10k"),
        num_classes=10,
        shape=(1, 28, 28),
        normalise=((0.2860,), (0.3530,)),
    )


def _read(folder: Path, part: str) -> Split:
    images = read_idx(find_idx(folder, f"{part}-images-idx3-ubyte", NAME), 3)
    labels = read_idx(find_idx(folder, f"{part}-labels-idx1-ubyte", NAME), 1)
    return Split(channels_first(images), labels)
