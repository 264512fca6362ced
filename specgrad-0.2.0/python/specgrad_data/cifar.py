"""CIFAR-10 and CIFAR-100 in three forms, and CIFAR-C, their test images under corruptions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specgrad_data import parquet
from specgrad_data.catalog import EXTRA_CORRUPTIONS, STANDARD_CORRUPTIONS
from specgrad_data.dataset import Dataset, Moments, Split, build, channel_statistics, shifted_splits
from specgrad_data.errors import DataError, DataWarning
from specgrad_data.fetch import checksum
from specgrad_data.files import Array, map_npy, missing, required
from specgrad_data.images import list_images, read_files

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
# a copy that went through JPEG is smoother: on CIFAR-10 its deviations are off by 0.0007 or more
DEVIATION_TOLERANCE = 0.0005
# of CIFAR-C: base images of each severity, and the share of them that is for the test
BASES = 10_000
SEVERITIES = 5
TEST_FRACTION = 0.2


@dataclass(frozen=True)
class Family:
    """Differences of CIFAR-10 and CIFAR-100; the label is the last of ``label_bytes`` bytes."""

    name: str
    num_classes: int
    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int
    label_column: tuple[str, ...]
    normalise: Moments
    official_std: tuple[float, ...]
    corrupted_labels_md5: str
    train_size: int = 50_000
    test_size: int = 10_000

    @property
    def facts(self) -> dict[str, Any]:
        """Arguments of :func:`build` that all versions of the images share."""
        own = {"num_classes": self.num_classes, "normalise": self.normalise}
        return {**own, "shape": SHAPE, "augment_pad": 4, "flip": True}


CIFAR10 = Family(
    name="cifar10",
    num_classes=10,
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    label_bytes=1,
    label_column=("label",),
    normalise=((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    official_std=(0.2470, 0.2435, 0.2616),
    corrupted_labels_md5="c439b113295ed5254878798ffe28fd54",
)
CIFAR100 = Family(
    name="cifar100",
    num_classes=100,
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    label_bytes=2,
    label_column=("fine_label", "label"),
    normalise=((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    official_std=(0.2673, 0.2564, 0.2762),
    corrupted_labels_md5="bb4026e9ce52996b95f439544568cdb2",
)


def load(folder: Path, size: int = 32) -> Dataset:
    """50,000 training and 10,000 test images; CIFAR-100 has the fine labels.

    folder: named like the data set, which is one of the two
    size: 16 or 8 shrinks the images
    """
    family = CIFAR10 if folder.name == "cifar10" else CIFAR100
    dataset = build(family.name, *_read(folder, family), **family.facts)
    for sentence in _doubts(dataset, family, folder):
        warnings.warn(sentence, DataWarning, stacklevel=3)
    return _shrunk(dataset, size)


def _doubts(dataset: Dataset, family: Family, folder: Path) -> Iterator[str]:
    """Signs that a copy is incomplete, or was compressed with loss."""
    name, std = family.name, family.official_std
    for part, labels, expected in (
        ("training", dataset.train_y, family.train_size),
        ("test", dataset.test_y, family.test_size),
    ):
        if len(labels) != expected:
            yield (
                f"{name} in {folder} has {len(labels)} {part} images instead of {expected}; "
                "results do not compare with those on the whole set"
            )
    _, found = channel_statistics(dataset.train_x)
    is_whole = len(dataset.train_y) == family.train_size
    if is_whole and np.abs(np.subtract(found, std)).max() > DEVIATION_TOLERANCE:
        shown, official = (", ".join(f"{x:.4f}" for x in values) for values in (found, std))
        yield (
            f"the training images of {name} have standard deviations {shown} where the official "
            f"ones have {official}: this copy was probably re-encoded with loss, so say so beside "
            "its results"
        )


def _shrunk(dataset: Dataset, size: int) -> Dataset:
    """Images of ``size`` pixels a side, each the rounded mean of a square of the original.

    The cost of a convolution falls with the square: for experiments on a small machine.
    """
    side = dataset.train_x.shape[-1]
    if size == side:
        return dataset
    if size not in (16, 8):
        raise DataError(f"size of {dataset.name} is {size}; choose 32, 16 or 8")
    block = side // size
    return replace(
        dataset,
        train_x=_block_means(dataset.train_x, block),
        test_x=_block_means(dataset.test_x, block),
        augment_pad=dataset.augment_pad // block,
        fingerprint=f"{dataset.fingerprint}-{size}",
    )


def _block_means(images: Tensor, block: int) -> Tensor:
    sums = images.to(torch.int16).unflatten(-1, (-1, block)).unflatten(-3, (-1, block))
    total = sums.sum((-3, -1), dtype=torch.int16)
    return ((total + block * block // 2) // (block * block)).to(torch.uint8)


def _read(folder: Path, family: Family) -> tuple[Split, Split]:
    """Both parts, from the first of the three forms that is there."""
    name = family.name
    # the official files, directly in the folder or unpacked as they come
    where = folder if (folder / family.train[0]).is_file() else folder / family.folder
    if where.is_dir():
        records = family.train_size // len(family.train)
        batches = [_read_records(where / file, family, records) for file in family.train]
        x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
        return Split(x, y), Split(*_read_records(where / family.test, family, family.test_size))
    if parquet.find_parquet(folder, "train"):
        return parquet.read_parts(name, folder, ("img", "image"), family.label_column, "test")
    if not (folder / "train").is_dir():
        raise missing(name, folder)
    if not (folder / "test").is_dir():
        raise missing(name, folder, "the folder test")
    train, classes = list_images(folder / "train")
    if len(classes) != family.num_classes:
        raise DataError(
            f"{folder / 'train'} has {len(classes)} class folders instead of "
            f"{family.num_classes}; put one folder for each class there, and nothing else"
        )
    test, _ = list_images(folder / "test", classes)
    return read_files(name, train, test, mode="RGB")


def _read_records(path: Path, family: Family, records: int) -> tuple[Array, Array]:
    """Images and labels of an official file."""
    size = required(family.name, path).stat().st_size
    length = family.label_bytes + PIXELS
    if size != records * length:
        raise DataError(
            f"{path} has {size} bytes instead of {records * length}, so it was cut short or is "
            f"another file; delete it and run `specgrad-fl data fetch {family.name}`"
        )
    table = np.fromfile(path, dtype=np.uint8).reshape(records, length)
    pixels = table[:, family.label_bytes :].reshape(records, *SHAPE)
    return pixels, table[:, family.label_bytes - 1]


def load_corrupted(
    folder: Path,
    severity: int = 3,
    corruptions: Sequence[str] | str = STANDARD_CORRUPTIONS,
    seed: int = 0,
    size: int = 32,
) -> Dataset:
    """8,000 base images for training and 2,000 for the test, under every corruption.

    Only test images were corrupted, so the base images themselves are divided: those of the
    training split never appear in the test split, under no corruption.

    folder: named like the data set, which is one of the two
    severity: 1 to 5
    corruptions: which types, as a list or separated by commas; by default the 15 standard ones
    seed: of the stratified division of the base images
    size: 16 or 8 shrinks the images
    """
    name = folder.name
    family = CIFAR10 if name == "cifar10_c" else CIFAR100
    chosen = corruptions.split(",") if isinstance(corruptions, str) else corruptions
    _check_request(severity, chosen)
    unpacked = folder / f"CIFAR-{family.num_classes}-C"
    where = unpacked if unpacked.is_dir() else folder
    if not where.is_dir():
        raise missing(name, folder)
    path = required(name, where / "labels.npy")
    labels = _read_severity(path, severity, np.integer)
    if checksum(path, "md5") != family.corrupted_labels_md5:
        warnings.warn(
            f"{path} is not the official file, so these corruptions were regenerated: call them "
            "so beside results",
            DataWarning,
            stacklevel=3,
        )
    images = []
    for kind in chosen:
        path = required(name, where / f"{kind}.npy")
        images.append(_read_severity(path, severity, np.uint8, 32, 32, 3).transpose(0, 3, 1, 2))
    train, test = shifted_splits(images, labels, TEST_FRACTION, seed)
    dataset = build(name, train, test, **family.facts, domain_names=tuple(chosen))
    return _shrunk(dataset, size)


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


def _read_severity(path: Path, severity: int, kind: type, *sample: int) -> Array:
    """The rows of one severity, whose pages are read when they are used."""
    array = map_npy(path)
    shape = (SEVERITIES * BASES, *sample)
    if array.shape != shape or not np.issubdtype(array.dtype, kind):
        raise DataError(
            f"{path} has shape {array.shape} and dtype {array.dtype}; expected {shape} of "
            f"{kind.__name__}"
        )
    return array[(severity - 1) * BASES : severity * BASES]
