"""Tiny-ImageNet: the official folders of JPEG files, or hub parquet."""

from __future__ import annotations

from pathlib import Path

from specgrad_data import parquet
from specgrad_data.dataset import Dataset, Split, build
from specgrad_data.errors import DataError
from specgrad_data.files import damaged, missing, readable, required
from specgrad_data.images import Labelled, read_files

NAME = "tiny_imagenet"
NUM_CLASSES = 200


def load(folder: Path) -> Dataset:
    """100,000 training images; the 10,000 validation images are the test set (test has no labels).

    Grey images become RGB; classes are the WordNet ids in sorted order.
    """
    where = folder if (folder / "wnids.txt").is_file() else folder / "tiny-imagenet-200"
    if where.is_dir():
        train, test = _read_folders(where)
    else:
        splits = ("valid", "val", "validation")
        train, test = parquet.read_parts(NAME, folder, ("image",), ("label",), *splits)
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


def _read_folders(where: Path) -> tuple[Split, Split]:
    path = where / "wnids.txt"
    classes = sorted({line.strip() for line in _read_lines(path)} - {""})
    if len(classes) != NUM_CLASSES:
        raise damaged(path, f"it names {len(classes)} classes instead of {NUM_CLASSES}")
    labels = {wnid: label for label, wnid in enumerate(classes)}
    train: Labelled = []
    for wnid, label in labels.items():
        found = sorted((where / "train" / wnid / "images").glob("*.JPEG"))
        if not found:
            raise missing(NAME, where, f"train/{wnid}/images/*.JPEG")
        train += [(file, label) for file in found]
    test: Labelled = []
    annotations = where / "val" / "val_annotations.txt"
    for line in _read_lines(annotations):
        name, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in labels or Path(name).name != name:
            raise DataError(
                f"{annotations} has the line {line!r}, which names no file and class of the data "
                "set; delete it and get it again"
            )
        file = where / "val" / "images" / name
        if not file.is_file():
            raise missing(NAME, where, f"val/images/{name}")
        test.append((file, labels[wnid]))
    return read_files(NAME, train, test, mode="RGB")


def _read_lines(path: Path) -> list[str]:
    with readable(path):
        return required(NAME, path).read_text(encoding="utf-8").splitlines()
