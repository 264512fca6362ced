"""A user's own data: an npz file, parquet files, or folders of images."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from specgrad_data import parquet, text
from specgrad_data.cache import cached
from specgrad_data.dataset import Dataset, Split, build, stratified_split
from specgrad_data.errors import DataError
from specgrad_data.files import Array, channels_first, number, read_npz
from specgrad_data.images import channel_mode, list_images, read_listings

SPLIT_SEED = 0
CHANNELS = (1, 2, 3, 4)


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
    if channels not in ("first", "last"):
        raise DataError(f"channels is {channels!r}; choose first or last")
    _check_exists(path, path.is_file(), "x_train, y_train, x_test and y_test in an npz file")
    names = ("x_train", "y_train", "x_test", "y_test")
    arrays = read_npz(path, names, ("writer_train",))
    return from_arrays(path, arrays, num_classes, augment_pad, flip, channels)


def from_arrays(
    path: Path,
    arrays: dict[str, Array],
    num_classes: int | None = None,
    augment_pad: int = 0,
    flip: bool = False,
    channels: str = "last",
) -> Dataset:
    """Arrays under the names of an npz file as a data set."""
    is_text = arrays["x_train"].ndim == 2 and arrays["x_train"].dtype.kind in "iu"
    _check_order(path, arrays["x_train"].shape, channels)
    if not is_text and (channels == "last" or arrays["x_train"].ndim == 3):
        arrays["x_train"] = channels_first(arrays["x_train"])
        arrays["x_test"] = channels_first(arrays["x_test"])
    writers = arrays.get("writer_train")
    train = Split(
        arrays["x_train"], arrays["y_train"], None if writers is None else number(writers)
    )
    test = Split(arrays["x_test"], arrays["y_test"])
    vocabulary = _highest(train.x, test.x) + 1 if is_text else 0
    return _build(path, train, test, num_classes, augment_pad, flip, vocabulary)


def _check_order(path: Path, shape: tuple[int, ...], channels: str) -> None:
    """Refuse an order of axes under which the other one would be images, and this one not."""
    if len(shape) != 4:
        return
    first, last = shape[1] in CHANNELS, shape[3] in CHANNELS
    read, other, fits, fits_other = "[N, H, W, C]", "first", last, first
    if channels == "first":
        read, other, fits, fits_other = "[N, C, H, W]", "last", first, last
    if fits_other and not fits:
        raise DataError(
            f"x_train of {path} has shape {list(shape)}, which as {read} would be images of "
            f"{shape[3] if channels == 'last' else shape[1]} channels; set the option "
            f"channels={other}"
        )


def load_images(
    path: Path, size: int | None = None, augment_pad: int = 0, flip: bool = False
) -> Dataset:
    """Image files in ``train/CLASS`` and ``test/CLASS``; ``size`` scales them to a square."""
    for part in ("train", "test"):
        _check_exists(path, (path / part).is_dir(), f"images in {part}/CLASS")
    train, classes = list_images(path / "train")
    test, _ = list_images(path / "test", classes)
    splits = read_listings("images", train, test, size=size)
    return _build(path, *splits, len(classes), augment_pad, flip)


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
    if text_column or column == "text":
        text.check_sizes(vocabulary, max_length)
        sizes = {"vocabulary": vocabulary, "max_length": max_length}
        splits = _encoded(train, test, [column, label], test_fraction, **sizes)
        return _build(path, *splits, num_classes, 0, False, vocabulary)
    columns = [column, label] + ([writer_column] if writer_column else [])
    splits = _decoded(train, test, columns, test_fraction, size)
    return _build(path, *splits, num_classes, augment_pad, flip)


def _decoded(
    train: list[Path], test: list[Path], columns: list[str], fraction: float, size: int | None
) -> tuple[Split, Split]:
    """Images of parquet files; ``columns`` are image, label and perhaps writer."""

    def decode() -> tuple[Split, Split]:
        whole = parquet.read_images(train, *columns, size=size)
        if test:
            mode = channel_mode(whole)
            return whole, parquet.read_images(test, *columns[:2], mode=mode, size=size)
        kept, held_out = stratified_split(whole.y, fraction, SPLIT_SEED)
        return whole.take(kept), whole.take(held_out)

    settings = {"columns": columns, "fraction": fraction, "size": size}
    return cached("parquet", train + test, decode, **settings)


def _encoded(
    train: list[Path], test: list[Path], columns: list[str], fraction: float, **sizes: int
) -> tuple[Split, Split]:
    """Token ids of parquet files; ``columns`` are text and label."""

    def decode() -> tuple[Split, Split]:
        whole = _read_texts(train, columns)
        if test:
            kept, held_out = whole, _read_texts(test, columns)
        else:
            labels = np.array([label for _, label in whole])
            places = stratified_split(labels, fraction, SPLIT_SEED)
            kept, held_out = ([whole[place] for place in part] for part in places)
        return text.encode_splits(lambda: iter(kept), lambda: iter(held_out), **sizes)

    return cached("parquet", train + test, decode, columns=columns, fraction=fraction, **sizes)


def _read_texts(files: list[Path], columns: list[str]) -> list[tuple[str, int]]:
    texts: list[str] = []
    values: list[object] = []
    for name, (content, label) in parquet.read_rows(files, columns):
        texts.append(parquet.as_text(content, name))
        values.append(label)
    return list(zip(texts, parquet.as_labels(values, files, columns[1]).tolist(), strict=True))


def _check_exists(path: Path, found: bool, expected: str) -> None:
    if not found:
        raise DataError(f"{path} does not exist or is incomplete; put {expected} there")


def check_classes(where: str, train: Array, test: Array) -> None:
    """Refuse labels from which nothing can be learned, or that cannot be learned."""
    known = np.unique(train)
    if len(known) == 1:
        raise DataError(
            f"all training labels of {where} are {known[0]}; a data set needs two classes or more"
        )
    strange = np.setdiff1d(test, known)
    if len(strange) and len(known):
        raise DataError(
            f"the test labels of {where} include {strange[0]}, which no training sample has; "
            "check that both parts number the classes alike"
        )


def _highest(*arrays: Array) -> int:
    return max((int(array.max()) for array in arrays if array.size), default=0)


def _build(
    path: Path,
    train: Split,
    test: Split,
    num_classes: int | None,
    augment_pad: int,
    flip: bool,
    vocabulary: int = 0,
) -> Dataset:
    if num_classes is None:
        integers = all(split.y.dtype.kind in "iu" for split in (train, test))
        num_classes = _highest(train.y, test.y) + 1 if integers else 1
        if num_classes > len(train.y) > 0:
            raise DataError(
                f"labels of {path} go up to {num_classes - 1} with {len(train.y)} training "
                "samples; number the classes from 0 without gaps, or set num_classes"
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
    check_classes(str(path), train.y, test.y)
    return built


def load_by(loader: Callable[..., Any], name: str, options: dict[str, Any]) -> Dataset:
    """What a function of the user's returns: arrays as in an npz file, as a dictionary."""
    try:
        arrays = loader(**options)
    except Exception as error:  # whatever a loader of one's own raises
        raise DataError(
            f"dataset {name!r} failed: {type(error).__name__}: {error}", traceback.format_exc()
        ) from error
    needed = ("x_train", "y_train", "x_test", "y_test")
    if not isinstance(arrays, dict) or any(key not in arrays for key in needed):
        raise DataError(
            f"dataset {name!r} returned {type(arrays).__name__}; return a dictionary with the "
            f"arrays {', '.join(needed)}"
        )
    return from_arrays(Path(name.replace(":", ".")), {k: np.asarray(v) for k, v in arrays.items()})
