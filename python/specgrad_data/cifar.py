"""CIFAR-10 and CIFAR-100: official binary files, hub parquet, or folders of images."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specgrad_data import parquet
from specgrad_data.cache import cached
from specgrad_data.dataset import Dataset, Split, build, channel_statistics
from specgrad_data.errors import DataError, DataWarning
from specgrad_data.files import missing
from specgrad_data.images import list_images, read_listings

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
# a copy that went through JPEG is smoother: on CIFAR-10 its deviations are off by 0.0007 or more
DEVIATION_TOLERANCE = 0.0005


@dataclass(frozen=True)
class Family:
    """What tells one CIFAR from the other; the label is the last of ``label_bytes`` bytes."""

    name: str
    num_classes: int
    folder: str
    train: tuple[str, ...]
    test: str
    records: int
    label_bytes: int
    label_column: tuple[str, ...]
    normalise: tuple[tuple[float, ...], tuple[float, ...]]
    official_std: tuple[float, ...]
    train_size: int = 50_000
    test_size: int = 10_000


CIFAR10 = Family(
    name="cifar10",
    num_classes=10,
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    records=10_000,
    label_bytes=1,
    label_column=("label",),
    normalise=((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    official_std=(0.2470, 0.2435, 0.2616),
)
CIFAR100 = Family(
    name="cifar100",
    num_classes=100,
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    records=50_000,
    label_bytes=2,
    label_column=("fine_label", "label"),
    normalise=((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    official_std=(0.2673, 0.2564, 0.2762),
)


def load_cifar10(folder: Path, size: int = 32) -> Dataset:
    """50,000 training and 10,000 test images of 10 classes; ``size`` 16 or 8 shrinks them."""
    return shrunk(_load(folder, CIFAR10), size)


def load_cifar100(folder: Path, size: int = 32) -> Dataset:
    """50,000 training and 10,000 test images of 100 classes (the fine labels)."""
    return shrunk(_load(folder, CIFAR100), size)


def shrunk(dataset: Dataset, size: int) -> Dataset:
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


def _load(folder: Path, family: Family) -> Dataset:
    train, test = _reader(folder, family)(folder, family)
    dataset = build(
        family.name,
        train,
        test,
        num_classes=family.num_classes,
        shape=SHAPE,
        normalise=family.normalise,
        augment_pad=4,
        flip=True,
    )
    for part, found, expected in (
        ("training", len(train.x), family.train_size),
        ("test", len(test.x), family.test_size),
    ):
        if found != expected:
            warnings.warn(
                f"{family.name} in {folder} has {found} {part} images instead of {expected}; "
                "results do not compare with those on the whole set",
                DataWarning,
                stacklevel=4,
            )
    warn_of_provenance(dataset, family)
    return dataset


def _reader(folder: Path, family: Family) -> Callable[[Path, Family], tuple[Split, Split]]:
    if _binary_folder(folder, family).is_dir():
        return _read_binary
    if parquet.find_parquet(folder, "train"):
        return _read_parquet
    if (folder / "train").is_dir():
        return _read_folders
    raise missing(family.name, folder)


def _binary_folder(folder: Path, family: Family) -> Path:
    """Where the official files are: unpacked as they come, or directly in ``folder``."""
    flat = (folder / family.train[0]).is_file()
    return folder if flat else folder / family.folder


def _read_binary(folder: Path, family: Family) -> tuple[Split, Split]:
    where = _binary_folder(folder, family)
    batches = [_read_records(where / name, family, family.records) for name in family.train]
    train = Split(
        np.concatenate([batch.x for batch in batches]),
        np.concatenate([batch.y for batch in batches]),
    )
    return train, _read_records(where / family.test, family, family.test_size)


def _read_records(path: Path, family: Family, records: int) -> Split:
    if not path.is_file():
        raise missing(family.name, path.parent, path.name)
    length = family.label_bytes + PIXELS
    size = path.stat().st_size
    if size != records * length:
        raise DataError(
            f"{path} has {size} bytes instead of {records * length}, so it was cut short or is "
            f"another file; delete it and run `specgrad-fl data fetch {family.name}`"
        )
    table = np.fromfile(path, dtype=np.uint8).reshape(records, length)
    pixels = table[:, family.label_bytes :].reshape(records, *SHAPE)
    return Split(pixels, table[:, family.label_bytes - 1])


def _read_parquet(folder: Path, family: Family) -> tuple[Split, Split]:
    train, test = (parquet.find_parquet(folder, split) for split in ("train", "test"))
    if not test:
        raise missing(family.name, folder, "test.parquet")

    def decode() -> tuple[Split, Split]:
        image = parquet.pick_column(train[0], "img", "image")
        label = parquet.pick_column(train[0], *family.label_column)
        return (
            parquet.read_images(train, image, label, mode="RGB"),
            parquet.read_images(test, image, label, mode="RGB"),
        )

    return cached(family.name, train + test, decode)


def _read_folders(folder: Path, family: Family) -> tuple[Split, Split]:
    if not (folder / "test").is_dir():
        raise missing(family.name, folder, "the folder test")
    train, classes = list_images(folder / "train")
    if len(classes) != family.num_classes:
        raise DataError(
            f"{folder / 'train'} has {len(classes)} class folders instead of "
            f"{family.num_classes}; put one folder for each class there, and nothing else"
        )
    test, _ = list_images(folder / "test", classes)
    return read_listings(family.name, train, test, mode="RGB")


def warn_of_provenance(dataset: Dataset, family: Family) -> None:
    """Warn where the whole training set deviates as a copy that was compressed with loss does."""
    if len(dataset.train_x) != family.train_size:
        return
    _, found = channel_statistics(dataset.train_x)
    distance = torch.tensor(found) - torch.tensor(family.official_std)
    if distance.abs().max() > DEVIATION_TOLERANCE:
        shown, official = (
            ", ".join(f"{value:.4f}" for value in values) for values in (found, family.official_std)
        )
        warnings.warn(
            f"the training images of {family.name} have standard deviations {shown} where the "
            f"official ones have {official}: this copy was probably re-encoded with loss, so say "
            "so beside its results",
            DataWarning,
            stacklevel=5,
        )
