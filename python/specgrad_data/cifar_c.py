"""CIFAR-10-C and CIFAR-100-C: the test images under corruptions, for feature shift.

Only test images were corrupted, so the base images themselves are divided: those of the training
split never appear in the test split, under no corruption.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from specgrad_data.catalog import ENTRIES, EXTRA_CORRUPTIONS, STANDARD_CORRUPTIONS
from specgrad_data.cifar import CIFAR10, CIFAR100, SHAPE
from specgrad_data.dataset import Array, Dataset, build, stratified_split, under_corruptions
from specgrad_data.errors import DataError, DataWarning
from specgrad_data.fetch import checksum
from specgrad_data.files import map_npy, missing, required

BASES = 10_000
SEVERITIES = 5
TEST_FRACTION = 0.2


def load(
    folder: Path,
    severity: int = 3,
    corruptions: Sequence[str] | str = STANDARD_CORRUPTIONS,
    seed: int = 0,
) -> Dataset:
    """8,000 base images for training and 2,000 for the test, under every corruption.

    folder: named like the data set, which is one of the two
    severity: 1 to 5
    corruptions: which types, as a list or separated by commas; by default the 15 standard ones
    seed: of the stratified division of the base images
    """
    name = folder.name
    family = CIFAR10 if name == "cifar10_c" else CIFAR100
    chosen = corruptions.split(",") if isinstance(corruptions, str) else corruptions
    _check_request(severity, chosen)
    official = ENTRIES[name].provides[-1]
    unpacked = folder / Path(official.path).parent
    where = unpacked if unpacked.is_dir() else folder
    if not where.is_dir():
        raise missing(name, folder)
    path = required(name, where / "labels.npy")
    expected = f"{SEVERITIES * BASES} whole numbers, {BASES} for each severity"
    labels = _read_severity(path, severity, (), np.integer, expected)
    if checksum(path, "md5") != official.md5:
        warnings.warn(
            f"{path} is not the official file, so these corruptions were regenerated: call them "
            "so beside results",
            DataWarning,
            stacklevel=3,
        )
    images = [_read_images(required(name, where / f"{kind}.npy"), severity) for kind in chosen]
    parts = stratified_split(labels, TEST_FRACTION, seed)
    return build(
        name,
        *(under_corruptions(images, labels, places) for places in parts),
        num_classes=family.num_classes,
        shape=SHAPE,
        normalise=family.normalise,
        augment_pad=4,
        flip=True,
        domain_names=tuple(chosen),
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


def _read_images(path: Path, severity: int) -> Array:
    shape = (*SHAPE[1:], SHAPE[0])
    expected = f"{(SEVERITIES * BASES, *shape)} of uint8"
    return _read_severity(path, severity, shape, np.uint8, expected).transpose(0, 3, 1, 2)


def _read_severity(
    path: Path, severity: int, shape: tuple[int, ...], kind: type, expected: str
) -> Array:
    """The rows of one severity, whose pages are read when they are used."""
    array = map_npy(path)
    if array.shape != (SEVERITIES * BASES, *shape) or not np.issubdtype(array.dtype, kind):
        raise DataError(
            f"{path} has shape {array.shape} and dtype {array.dtype}; expected {expected}"
        )
    return array[(severity - 1) * BASES : severity * BASES]
