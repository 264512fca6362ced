"""Fashion-MNIST, MNIST with the writer of each image (QMNIST), and BloodMNIST."""

from __future__ import annotations

from pathlib import Path

from specgrad_data import files
from specgrad_data.dataset import Dataset, Split, build
from specgrad_data.errors import DataError

# QMNIST reconstructs 60,000 test images; MNIST kept the first 10,000 of them
MNIST_TEST = 10_000
LABEL, WRITER = 0, 2


def load_fashion_mnist(folder: Path) -> Dataset:
    """60,000 training and 10,000 test images of 28 x 28, 10 classes."""
    if not folder.is_dir():
        raise files.missing(folder.name, folder)
    splits = []
    for part in ("train", "t10k"):
        images = files.read_idx(files.find_idx(folder, f"{part}-images-idx3-ubyte"), 3)
        labels = files.read_idx(files.find_idx(folder, f"{part}-labels-idx1-ubyte"), 1)
        splits.append(Split(files.channels_first(images), labels))
    normalise = ((0.2860,), (0.3530,))
    return build(folder.name, *splits, num_classes=10, shape=(1, 28, 28), normalise=normalise)


def load_mnist_by_writer(folder: Path) -> Dataset:
    """60,000 training images by 539 writers and 10,000 test images, 10 classes."""
    if (folder / "mnist.npz").is_file():
        writer_ids = files.required(folder.name, folder / "writer_ids.npz")
        arrays = files.read_npz(folder / "mnist.npz", files.SAMPLES)
        writers = files.number(files.read_npz(writer_ids, ("writer_train",))["writer_train"])
        train = Split(files.channels_first(arrays["x_train"]), arrays["y_train"], writers)
        test = Split(files.channels_first(arrays["x_test"]), arrays["y_test"])
    elif folder.is_dir():
        train, test = _read_qmnist(folder, "train"), _read_qmnist(folder, "test")
        test = Split(test.x[:MNIST_TEST], test.y[:MNIST_TEST])
    else:
        raise files.missing(folder.name, folder)
    normalise = ((0.1307,), (0.3081,))
    return build(folder.name, train, test, num_classes=10, shape=(1, 28, 28), normalise=normalise)


def _read_qmnist(folder: Path, part: str) -> Split:
    images = files.read_idx(files.find_idx(folder, f"qmnist-{part}-images-idx3-ubyte"), 3)
    path = files.find_idx(folder, f"qmnist-{part}-labels-idx2-int")
    table = files.read_idx(path, 2)
    if table.shape[1] <= WRITER:
        raise DataError(
            f"{path} has {table.shape[1]} columns and none for the writer; use QMNIST's extended "
            "labels (idx2-int)"
        )
    return Split(files.channels_first(images), table[:, LABEL], files.number(table[:, WRITER]))


def load_bloodmnist(folder: Path) -> Dataset:
    """11,959 training and 3,421 test images of 28 x 28, 8 classes."""
    path = files.required(folder.name, folder / "bloodmnist.npz")
    arrays = files.read_npz(path, ("train_images", "train_labels", "test_images", "test_labels"))
    splits = []
    for part in ("train", "test"):
        labels = arrays[f"{part}_labels"]
        if labels.ndim == 2 and labels.shape[1] == 1:  # other shapes are left to the checks
            labels = labels[:, 0]
        splits.append(Split(files.channels_first(arrays[f"{part}_images"]), labels))
    normalise = ((0.5,) * 3, (0.5,) * 3)
    return build(folder.name, *splits, num_classes=8, shape=(3, 28, 28), normalise=normalise)
