"""A user's own data: an npz file, parquet files, or folders of images."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from specgrad_data import parquet, text
from specgrad_data.cache import cached
from specgrad_data.dataset import Dataset, Split, build, stratified_split
from specgrad_data.errors import DataError
from specgrad_data.files import SAMPLES, Array, channels_first, number, read_npz
from specgrad_data.images import channel_mode, list_images, read_files

SPLIT_SEED = 0
CHANNELS = (1, 2, 3, 4)
# where channels are, and the order of axes that this makes
ORDERS = {"first": (1, "[N, C, H, W]"), "last": (3, "[N, H, W, C]")}


def load_npz(
    path: Path,
    num_classes: int | None = None,
    augment_pad: int = 0,
    flip: bool = False,
    channels: str = "last",
) -> Dataset:
    """``x_train, y_train, x_test, y_test`` and, where there are natural clients, ``writer_train``.

    ``x`` is ``uint8 [N, H, W]``, ``[N, H, W, C]`` (or ``[N, C, H, W]`` with
    ``channels="first"``), or token ids ``[N, L]`` of a wider integer type with 0 for padding.
    """
    if channels not in ORDERS:
        raise DataError(f"channels is {channels!r}; choose first or last")
    _check_exists(path, path.is_file(), "x_train, y_train, x_test and y_test in an npz file")
    arrays = read_npz(path, SAMPLES, ("writer_train",))
    return _build(path, *_divided(path, arrays, channels), num_classes, augment_pad, flip)


def load_by(loader: Callable[..., Any], name: str, options: dict[str, Any]) -> Dataset:
    """The arrays of an npz file, as a dictionary that a user's function returns."""
    try:
        found = loader(**options)
        if isinstance(found, dict):
            wanted = found.keys() & {*SAMPLES, "writer_train"}
            found = {key: np.asarray(found[key]) for key in wanted}
    except Exception as error:  # whatever a user's loader raises
        raise DataError(
            f"dataset {name!r} failed: {type(error).__name__}: {error}", traceback.format_exc()
        ) from error
    if not isinstance(found, dict) or any(key not in found for key in SAMPLES):
        raise DataError(
            f"dataset {name!r} returned {type(found).__name__}; return a dictionary with the "
            f"arrays {', '.join(SAMPLES)}"
        )
    path = Path(name.replace(":", "."))
    return _build(path, *_divided(path, found, "last"))


def _divided(path: Path, arrays: dict[str, Array], channels: str) -> tuple[Split, Split, int]:
    """Training and test split, and for token ids the size of the vocabulary."""
    train_x, test_x = arrays["x_train"], arrays["x_test"]
    is_text = train_x.ndim == 2 and train_x.dtype.kind in "iu"
    shape, other = train_x.shape, "last" if channels == "first" else "first"
    (axis, read), (other_axis, _) = ORDERS[channels], ORDERS[other]
    if len(shape) == 4 and shape[other_axis] in CHANNELS and shape[axis] not in CHANNELS:
        raise DataError(
            f"x_train of {path} has shape {list(shape)}, which as {read} would be images of "
            f"{shape[axis]} channels; write --data-option channels={other}"
        )
    if not is_text and (channels == "last" or train_x.ndim == 3):
        train_x, test_x = channels_first(train_x), channels_first(test_x)
    writers = number(arrays["writer_train"]) if "writer_train" in arrays else None
    return (
        Split(train_x, arrays["y_train"], writers),
        Split(test_x, arrays["y_test"]),
        _highest(train_x, test_x) + 1 if is_text else 0,
    )


def load_images(
    path: Path, size: int | None = None, augment_pad: int = 0, flip: bool = False
) -> Dataset:
    """Image files in ``train/CLASS`` and ``test/CLASS``; ``size`` scales them to a square."""
    for part in ("train", "test"):
        _check_exists(path, (path / part).is_dir(), f"images in {part}/CLASS")
    train, classes = list_images(path / "train")
    test, _ = list_images(path / "test", classes)
    splits = read_files("images", train, test, size=size)
    return _build(path, *splits, 0, len(classes), augment_pad, flip)


def load_parquet(
    path: Path,
    image_column: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    writer_column: str | None = None,
    num_classes: int | None = None,
    size: int | None = None,
    augment_pad: int = 0,
    flip: bool = False,
    test_fraction: float = 0.2,
    vocabulary: int = text.VOCABULARY,
    max_length: int = text.MAX_LENGTH,
) -> Dataset:
    """``train.parquet`` with images or texts, and ``test.parquet``.

    Images are ``{bytes, path}`` structs in a column ``image`` or ``img``, texts strings in
    ``text``, labels whole numbers in ``label``; other columns are named by the options. Without a
    test file ``test_fraction`` of every class is held out, always the same samples.
    """
    train = [path] if path.suffix == ".parquet" else parquet.find_parquet(path, "train")
    _check_exists(path, bool(train) and train[0].is_file(), "train.parquet")
    test = [] if train == [path] else parquet.find_parquet(path, "test", "valid", "validation")
    label = label_column or parquet.pick_column(train[0], "label", "fine_label", "labels")
    wanted = [name for name in (image_column, text_column) if name]
    column = parquet.pick_column(train[0], *(wanted or ["image", "img", "text"]))
    is_text = bool(text_column) or column == "text"
    columns = [column, label]
    settings: dict[str, int | None] = {"size": size}
    if is_text:
        text.check_sizes(vocabulary, max_length)
        settings = {"vocabulary": vocabulary, "max_length": max_length}
    if writer_column:
        columns.append(writer_column)

    def read(files: list[Path], *names: str, mode: str | None = None) -> Split:
        if is_text:
            return parquet.read_texts(files, *names)
        return parquet.read_images(files, *names, mode=mode, size=size)

    def decode() -> tuple[Split, Split]:
        kept = read(train, *columns)
        if test:
            rest = read(test, *columns[:2], mode=None if is_text else channel_mode(kept))
        else:
            places = stratified_split(kept.y, test_fraction, SPLIT_SEED)
            kept, rest = (kept.take(part) for part in places)
        if not is_text:
            return kept, rest
        train_texts, test_texts = (list(zip(part.x, part.y, strict=True)) for part in (kept, rest))
        encoded, rest = text.encode_splits(
            lambda: train_texts, lambda: test_texts, vocabulary, max_length
        )
        return replace(encoded, writers=kept.writers), rest

    splits = cached(
        "parquet", train + test, decode, columns=columns, fraction=test_fraction, **settings
    )
    if is_text:
        return _build(path, *splits, vocabulary, num_classes)
    return _build(path, *splits, 0, num_classes, augment_pad, flip)


def _check_exists(path: Path, found: bool, expected: str) -> None:
    if not found:
        raise DataError(f"{path} does not exist or is incomplete; put {expected} there")


def _highest(*arrays: Array) -> int:
    """The highest whole number; arrays of another type are left to the checks."""
    integers = [array for array in arrays if array.size and array.dtype.kind in "iu"]
    return max((int(array.max()) for array in integers), default=0)


def _build(
    path: Path,
    train: Split,
    test: Split,
    vocabulary: int = 0,
    num_classes: int | None = None,
    augment_pad: int = 0,
    flip: bool = False,
) -> Dataset:
    if num_classes is None:
        num_classes = _highest(train.y, test.y) + 1
        if num_classes > len(train.y) > 0:
            raise DataError(
                f"labels of {path} go up to {num_classes - 1} with {len(train.y)} training "
                "samples; number the classes from 0 without gaps, or write "
                "--data-option num_classes=N"
            )
    built = build(
        path.stem,
        train,
        test,
        num_classes=num_classes,
        augment_pad=augment_pad,
        flip=flip,
        vocabulary=vocabulary,
    )
    known = np.unique(train.y)
    if len(known) == 1:
        raise DataError(
            f"all training labels of {path} are {known[0]}; a data set needs two classes or more"
        )
    strange = np.setdiff1d(test.y, known)
    if len(strange):
        raise DataError(
            f"the test labels of {path} include {strange[0]}, which no training sample has; "
            "check that both parts number the classes alike"
        )
    return built
