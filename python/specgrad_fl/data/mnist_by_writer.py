"""MNIST with the writer of each image, from QMNIST: two npz files, or QMNIST's own idx files."""

from __future__ import annotations

from pathlib import Path

from specgrad_fl.data.base import DataError, Dataset, Split, build
from specgrad_fl.data.files import channels_first, missing, number, read_npz
from specgrad_fl.data.idx import find_idx, read_idx

NAME = "mnist_by_writer"
# QMNIST reconstructs 60,000 test images; MNIST kept the first 10,000 of them
MNIST_TEST = 10_000
LABEL, WRITER = 0, 2


def load(folder: Path) -> Dataset:
    """60,000 training images by 539 writers and 10,000 test images, 10 classes."""
    if (folder / "mnist.npz").is_file():
        train, test = _read_npz(folder)
    elif folder.is_dir():
        train, test = _read_qmnist(folder, "train"), _read_qmnist(folder, "test")
        test = Split(test.x[:MNIST_TEST], test.y[:MNIST_TEST])
    else:
        raise missing(NAME, folder)
    return build(
        NAME, train, test, num_classes=10, shape=(1, 28, 28), normalise=((0.1307,), (0.3081,))
    )


def _read_npz(folder: Path) -> tuple[Split, Split]:
    if not (folder / "writer_ids.npz").is_file():
        raise missing(NAME, folder, "writer_ids.npz")
    pixels = read_npz(folder / "mnist.npz", ("x_train", "y_train", "x_test", "y_test"))
    writers = read_npz(folder / "writer_ids.npz", ("writer_train",))["writer_train"]
    return (
        Split(channels_first(pixels["x_train"]), pixels["y_train"], number(writers)),
        Split(channels_first(pixels["x_test"]), pixels["y_test"]),
    )


def _read_qmnist(folder: Path, part: str) -> Split:
    images = read_idx(find_idx(folder, f"qmnist-{part}-images-idx3-ubyte", NAME), 3)
    path = find_idx(folder, f"qmnist-{part}-labels-idx2-int", NAME)
    table = read_idx(path, 2)
    if table.shape[1] <= WRITER:
        raise DataError(
            f"{path} has {table.shape[1]} columns and none for the writer; use QMNIST's extended "
            "labels (idx2-int)"
        )
    return Split(channels_first(images), table[:, LABEL], number(table[:, WRITER]))
