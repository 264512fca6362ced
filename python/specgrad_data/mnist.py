"""Fashion-MNIST, MNIST with the writer of each image (QMNIST), and BloodMNIST."""

from __future__ import annotations

from pathlib import Path

from specgrad_data.dataset import Dataset, Split, build
from specgrad_data.errors import DataError
from specgrad_data.files import Array, channels_first, find_idx, missing, number, read_idx, read_npz

FASHION = "fashion_mnist"


def load_fashion_mnist(folder: Path) -> Dataset:
    """60,000 training and 10,000 test images of 28 x 28, 10 classes."""
    if not folder.is_dir():
        raise missing(FASHION, folder)
    return build(
        FASHION,
        _read_fashion(folder, "train"),
        _read_fashion(folder, "t10k"),
        num_classes=10,
        shape=(1, 28, 28),
        normalise=((0.2860,), (0.3530,)),
    )


def _read_fashion(folder: Path, part: str) -> Split:
    images = read_idx(find_idx(folder, f"{part}-images-idx3-ubyte", FASHION), 3)
    labels = read_idx(find_idx(folder, f"{part}-labels-idx1-ubyte", FASHION), 1)
    return Split(channels_first(images), labels)


BY_WRITER = "mnist_by_writer"
# QMNIST reconstructs 60,000 test images; MNIST kept the first 10,000 of them
MNIST_TEST = 10_000
LABEL, WRITER = 0, 2


def load_mnist_by_writer(folder: Path) -> Dataset:
    """60,000 training images by 539 writers and 10,000 test images, 10 classes."""
    if (folder / "mnist.npz").is_file():
        train, test = _read_npz(folder)
    elif folder.is_dir():
        train, test = _read_qmnist(folder, "train"), _read_qmnist(folder, "test")
        test = Split(test.x[:MNIST_TEST], test.y[:MNIST_TEST])
    else:
        raise missing(BY_WRITER, folder)
    return build(
        BY_WRITER, train, test, num_classes=10, shape=(1, 28, 28), normalise=((0.1307,), (0.3081,))
    )


def _read_npz(folder: Path) -> tuple[Split, Split]:
    if not (folder / "writer_ids.npz").is_file():
        raise missing(BY_WRITER, folder, "writer_ids.npz")
    pixels = read_npz(folder / "mnist.npz", ("x_train", "y_train", "x_test", "y_test"))
    writers = read_npz(folder / "writer_ids.npz", ("writer_train",))["writer_train"]
    return (
        Split(channels_first(pixels["x_train"]), pixels["y_train"], number(writers)),
        Split(channels_first(pixels["x_test"]), pixels["y_test"]),
    )


def _read_qmnist(folder: Path, part: str) -> Split:
    images = read_idx(find_idx(folder, f"qmnist-{part}-images-idx3-ubyte", BY_WRITER), 3)
    path = find_idx(folder, f"qmnist-{part}-labels-idx2-int", BY_WRITER)
    table = read_idx(path, 2)
    if table.shape[1] <= WRITER:
        raise DataError(
            f"{path} has {table.shape[1]} columns and none for the writer; use QMNIST's extended "
            "labels (idx2-int)"
        )
    return Split(channels_first(images), table[:, LABEL], number(table[:, WRITER]))


BLOOD = "bloodmnist"


def load_bloodmnist(folder: Path) -> Dataset:
    """11,959 training and 3,421 test images of 28 x 28, 8 classes."""
    path = folder / "bloodmnist.npz"
    if not path.is_file():
        raise missing(BLOOD, folder, path.name)
    arrays = read_npz(path, ("train_images", "train_labels", "test_images", "test_labels"))
    return build(
        BLOOD,
        Split(channels_first(arrays["train_images"]), _one_column(arrays["train_labels"])),
        Split(channels_first(arrays["test_images"]), _one_column(arrays["test_labels"])),
        num_classes=8,
        shape=(3, 28, 28),
        normalise=((0.5,) * 3, (0.5,) * 3),
    )


def _one_column(labels: Array) -> Array:
    """``[N, 1]`` to ``[N]``; other shapes are left to the checks."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
