"""Parquet files in the layout of data hubs: one or more files per split, images as structs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from specgrad_data.cache import cached
from specgrad_data.dataset import Split
from specgrad_data.errors import DataError, installing
from specgrad_data.files import Array, missing, number, readable
from specgrad_data.images import decode_images

ROWS_AT_ONCE = 1024


def find_parquet(folder: Path, *splits: str) -> list[Path]:
    """The files of the first split that has any: ``train.parquet`` or ``train-00000-of-….parquet``.

    They may lie in ``folder`` or, as on a hub, in a folder of it.
    """
    if not folder.is_dir():
        return []
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    for split in splits:
        for place in places:
            whole = place / f"{split}.parquet"
            found = [whole] if whole.is_file() else sorted(place.glob(f"{split}-*.parquet"))
            if found:
                return found
    return []


def find_parts(name: str, folder: Path, *test_splits: str) -> tuple[list[Path], list[Path]]:
    """The training and the test files of a data set that has a name; both must be there."""
    train, test = find_parquet(folder, "train"), find_parquet(folder, *test_splits)
    if not train:
        raise missing(name, folder)
    if not test:
        raise missing(name, folder, f"{test_splits[0]}.parquet")
    return train, test


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file; damage found while reading raises an error."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError(
            f"{path} needs pyarrow, which cannot be imported ({error}); {installing('fl')}"
        ) from error
    with readable(path, pyarrow.ArrowException), pyarrow.parquet.ParquetFile(path) as file:
        yield file


def pick_column(path: Path, *candidates: str) -> str:
    """The first of these columns that the file has, whether or not it is nested."""
    with _opened(path) as file:
        present = file.schema_arrow.names
    for candidate in candidates:
        if candidate in present:
            return candidate
    raise DataError(
        f"{path} has the columns {', '.join(present)}; expected {' or '.join(candidates)}"
    )


def read_rows(files: list[Path], columns: list[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every row of these columns as Python values, with a name for errors."""
    for path in files:
        with _opened(path) as file:
            absent = [name for name in columns if name not in file.schema_arrow.names]
            if absent:
                raise DataError(
                    f"{path} has the columns {', '.join(file.schema_arrow.names)} but not "
                    f"{', '.join(absent)}; name a column that is there"
                )
            row = 0
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
                values = [batch.column(name).to_pylist() for name in columns]
                for fields in zip(*values, strict=True):
                    yield f"{row} of {path}", fields
                    row += 1


def read_images(
    files: list[Path],
    image: str,
    label: str,
    writer: str | None = None,
    *,
    mode: str | None = None,
    size: int | None = None,
) -> Split:
    """Decode the column ``image`` of ``{bytes, path}`` structs, or of plain bytes."""
    labels: list[Any] = []
    writers: list[Any] = []
    columns = [image, label] + ([writer] if writer else [])
    count = 0
    for path in files:
        with _opened(path) as file:
            count += file.metadata.num_rows

    def encoded() -> Iterable[tuple[str, bytes]]:
        for name, (picture, *rest) in read_rows(files, columns):
            content = picture.get("bytes") if isinstance(picture, dict) else picture
            if not isinstance(content, bytes):
                raise DataError(
                    f"row {name} has no image bytes in column {image}; store each image as a "
                    "struct with the fields bytes and path"
                )
            labels.append(rest[0])
            writers.extend(rest[1:])
            yield name, content

    pixels = decode_images(encoded(), count, mode=mode, size=size)
    return _labelled(pixels, labels, writers, files, label)


def read_parts(
    name: str, folder: Path, images: tuple[str, ...], labels: tuple[str, ...], *test_splits: str
) -> tuple[Split, Split]:
    """The colour images of a data set that has a name, decoded once.

    images, labels: what their columns may be called
    """
    train, test = find_parts(name, folder, *test_splits)

    def decode() -> tuple[Split, Split]:
        columns = pick_column(train[0], *images), pick_column(train[0], *labels)
        return read_images(train, *columns, mode="RGB"), read_images(test, *columns, mode="RGB")

    return cached(name, train + test, decode)


def read_texts(files: list[Path], column: str, label: str, writer: str | None = None) -> Split:
    """Texts as Python strings in an array of objects."""
    texts: list[str] = []
    labels: list[Any] = []
    writers: list[Any] = []
    for name, (content, *rest) in read_rows(files, [column, label] + ([writer] if writer else [])):
        texts.append(as_text(content, name))
        labels.append(rest[0])
        writers.extend(rest[1:])
    return _labelled(np.array(texts, dtype=object), labels, writers, files, label)


def _labelled(
    x: Array, labels: Sequence[Any], writers: Sequence[Any], files: list[Path], column: str
) -> Split:
    """Samples with what stands beside them in their rows; ``column`` is that of the labels."""
    return Split(
        x, _as_labels(labels, files, column), number(np.array(writers)) if writers else None
    )


def _as_labels(values: Sequence[object], files: list[Path], column: str) -> Array:
    """Python values of a label column as an integer array."""
    if not all(isinstance(value, int) and abs(value) < 2**63 for value in values):
        raise DataError(
            f"column {column} of {files[0]} holds labels that are no whole numbers; number the "
            "classes from 0"
        )
    return np.array(values, dtype=np.int64)


def as_text(value: object, name: str) -> str:
    """The text of one row; a missing one is empty."""
    if value is not None and not isinstance(value, str):
        raise DataError(f"row {name} holds {type(value).__name__}; store texts as strings")
    return value or ""
