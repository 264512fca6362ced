"""Tiny-ImageNet: the official folders of JPEG files, or hub parquet."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specgrad_data import parquet
from specgrad_data.cache import cached
from specgrad_data.dataset import Dataset, Split, build
from specgrad_data.errors import DataError
from specgrad_data.files import damaged, missing
from specgrad_data.images import Listing, read_listings

NAME = "tiny_imagenet"
NUM_CLASSES = 200


def load(folder: Path) -> Dataset:
    """100,000 training images; the 10,000 validation images are the test set (test has no labels).

    Grey images become RGB; classes are the WordNet ids in sorted order.
    """
    train, test = _read_folders(folder) if _unpacked(folder).is_dir() else _read_parquet(folder)
    return build(
        NAME,
        train,
        test,
        num_classes=NUM_CLASSES,
        shape=(3, 64, 64),
        normalise=((0.5,) * 3, (0.5,) * 3),
        augment_pad=8,
        flip=True,
    )


def _unpacked(folder: Path) -> Path:
    return folder if (folder / "wnids.txt").is_file() else folder / "tiny-imagenet-200"


def _read_parquet(folder: Path) -> tuple[Split, Split]:
    train = parquet.find_parquet(folder, "train")
    if not train:
        raise missing(NAME, folder)
    test = parquet.find_parquet(folder, "valid", "val", "validation")
    if not test:
        raise missing(NAME, folder, "valid.parquet")

    def decode() -> tuple[Split, Split]:
        return (
            parquet.read_images(train, "image", "label", mode="RGB"),
            parquet.read_images(test, "image", "label", mode="RGB"),
        )

    return cached(NAME, train + test, decode)


def _read_folders(folder: Path) -> tuple[Split, Split]:
    where = _unpacked(folder)
    labels = {wnid: label for label, wnid in enumerate(_read_classes(where))}
    return read_listings(
        NAME, _list_train(where, labels), _list_validation(where, labels), mode="RGB"
    )


def _read_lines(path: Path) -> list[str]:
    if not path.is_file():
        raise missing(NAME, path.parent, path.name)
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise damaged(path, error) from error


def _read_classes(where: Path) -> list[str]:
    path = where / "wnids.txt"
    classes = sorted({line.strip() for line in _read_lines(path)} - {""})
    if len(classes) != NUM_CLASSES:
        raise damaged(path, f"it names {len(classes)} classes instead of {NUM_CLASSES}")
    return classes


def _list_train(where: Path, labels: dict[str, int]) -> Listing:
    files: list[Path] = []
    numbers: list[int] = []
    for wnid, label in labels.items():
        found = sorted((where / "train" / wnid / "images").glob("*.JPEG"))
        if not found:
            raise missing(NAME, where, f"train/{wnid}/images/*.JPEG")
        files += found
        numbers += [label] * len(found)
    return Listing(files, np.array(numbers, dtype=np.int64))


def _list_validation(where: Path, labels: dict[str, int]) -> Listing:
    annotations = where / "val" / "val_annotations.txt"
    files: list[Path] = []
    numbers: list[int] = []
    for line in _read_lines(annotations):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in labels or Path(name).name != name:
            raise DataError(
                f"{annotations} has the line {line!r}, which names no file and class of the data "
                "set; delete it and get it again"
            )
        file = where / "val" / "images" / name
        if not file.is_file():
            raise missing(NAME, where, f"val/images/{name}")
        files.append(file)
        numbers.append(labels[wnid])
    return Listing(files, np.array(numbers, dtype=np.int64))
