"""BloodMNIST: one npz file; its validation images stay unused."""

from __future__ import annotations

from pathlib import Path

from specgrad_fl.data.base import Dataset, Split, build
from specgrad_fl.data.files import Array, channels_first, missing, read_npz

NAME = "bloodmnist"


def load(folder: Path) -> Dataset:
    """11,959 training and 3,421 test images of 28 x 28, 8 classes."""
    path = folder / "bloodmnist.npz"
    if not path.is_file():
        raise missing(NAME, folder, path.name)
    arrays = read_npz(path, ("train_images", "train_labels", "test_images", "test_labels"))
    return build(
        NAME,
        Split(channels_first(arrays["train_images"]), _flat(arrays["train_labels"])),
        Split(channels_first(arrays["test_images"]), _flat(arrays["test_labels"])),
        num_classes=8,
        shape=(3, 28, 28),
        normalise=((0.5,) * 3, (0.5,) * 3),
    )


def _flat(labels: Array) -> Array:
    """``[N, 1]`` to ``[N]``; other shapes are left to the checks."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
