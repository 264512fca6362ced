"""CIFAR-10-C and CIFAR-100-C: the test images under corruptions, for feature shift.

Only test images were corrupted, so the base images themselves are divided: those of the training
split never appear in the test split, under no corruption.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specgrad_data.catalog import ENTRIES, EXTRA_CORRUPTIONS, STANDARD_CORRUPTIONS
from specgrad_data.cifar import CIFAR10, CIFAR100, SHAPE, Family
from specgrad_data.dataset import Dataset, Split, build, stratified_split
from specgrad_data.errors import DataError, DataWarning
from specgrad_data.fetch import checksum
from specgrad_data.files import map_npy, missing

BASES = 10_000
SEVERITIES = 5
TEST_FRACTION = 0.2


def load_cifar10_c(
    folder: Path,
    severity: int = 3,
    corruptions: Sequence[str] | str = STANDARD_CORRUPTIONS,
    seed: int = 0,
) -> Dataset:
    """8,000 base images for training and 2,000 for the test, under every corruption.

    severity: 1 to 5
    corruptions: which types, as a list or separated by commas; by default the 15 standard ones
    seed: of the stratified division of the base images
    """
    return _load(folder, "cifar10_c", CIFAR10, severity, corruptions, seed)


def load_cifar100_c(
    folder: Path,
    severity: int = 3,
    corruptions: Sequence[str] | str = STANDARD_CORRUPTIONS,
    seed: int = 0,
) -> Dataset:
    """As :func:`load_cifar10_c`, with 100 classes."""
    return _load(folder, "cifar100_c", CIFAR100, severity, corruptions, seed)


def _load(
    folder: Path,
    name: str,
    family: Family,
    severity: int,
    chosen: Sequence[str] | str,
    seed: int,
) -> Dataset:
    corruptions = chosen.split(",") if isinstance(chosen, str) else chosen
    _check_request(severity, corruptions)
    labels_file = ENTRIES[name].provides[-1]
    unpacked = folder / Path(labels_file.path).parent
    where = unpacked if unpacked.is_dir() else folder
    if not where.is_dir():
        raise missing(name, folder)
    labels = _read_labels(where / "labels.npy", name, labels_file.md5, severity)
    train, test = stratified_split(labels, TEST_FRACTION, seed)
    shape = (len(corruptions),)
    train_x = np.empty((*shape, len(train), *SHAPE), np.uint8)
    test_x = np.empty((*shape, len(test), *SHAPE), np.uint8)
    for place, corruption in enumerate(corruptions):
        images = _read_severity(where / f"{corruption}.npy", name, severity)
        train_x[place] = images[train]
        test_x[place] = images[test]
    kinds = np.arange(len(corruptions), dtype=np.int64)
    return build(
        name,
        Split(train_x.reshape(-1, *SHAPE), np.tile(labels[train], shape)),
        Split(test_x.reshape(-1, *SHAPE), np.tile(labels[test], shape)),
        num_classes=family.num_classes,
        shape=SHAPE,
        normalise=family.normalise,
        augment_pad=4,
        flip=True,
        domains=np.repeat(kinds, len(train)),
        bases=np.tile(train, shape),
        test_domains=np.repeat(kinds, len(test)),
        domain_names=tuple(corruptions),
    )


def _check_request(severity: int, corruptions: Sequence[str]) -> None:
    if severity not in range(1, SEVERITIES + 1):
        raise DataError(f"severity is {severity}; choose 1 to {SEVERITIES}")
    known = STANDARD_CORRUPTIONS + EXTRA_CORRUPTIONS
    unknown = [name for name in corruptions if name not in known]
    if unknown:
        raise DataError(f"there is no corruption {unknown[0]!r}; choose from {', '.join(known)}")
    if not corruptions or len(set(corruptions)) != len(corruptions):
        raise DataError(
            f"corruptions is {list(corruptions)}; name at least one type, and each type once"
        )


def _rows(severity: int) -> slice:
    return slice((severity - 1) * BASES, severity * BASES)


def _read_labels(path: Path, name: str, official: str | None, severity: int) -> NDArray[np.int64]:
    if not path.is_file():
        raise missing(name, path.parent, path.name)
    labels = map_npy(path)
    if labels.shape != (SEVERITIES * BASES,) or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path} has shape {labels.shape} and dtype {labels.dtype}; expected "
            f"{SEVERITIES * BASES} whole numbers, {BASES} for each severity"
        )
    if checksum(path, "md5") != official:
        warnings.warn(
            f"{path} is not the official file, so these corruptions were regenerated: call them "
            "so beside results",
            DataWarning,
            stacklevel=5,
        )
    return np.array(labels[_rows(severity)], dtype=np.int64)


def _read_severity(path: Path, name: str, severity: int) -> NDArray[np.uint8]:
    """``uint8 [BASES, C, H, W]``: the rows of one severity, read without the others."""
    if not path.is_file():
        raise missing(name, path.parent, path.name)
    images = map_npy(path)
    expected = (SEVERITIES * BASES, *SHAPE[1:], SHAPE[0])
    if images.shape != expected or images.dtype != np.uint8:
        raise DataError(
            f"{path} has shape {images.shape} and dtype {images.dtype}; expected {expected} of "
            "uint8"
        )
    return np.array(images[_rows(severity)].transpose(0, 3, 1, 2), dtype=np.uint8)
