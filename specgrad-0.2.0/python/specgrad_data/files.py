"""Reading files that may be missing, cut short or of another kind; nothing is unpickled."""

from __future__ import annotations

import gzip
import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specgrad_data.catalog import where_to_get
from specgrad_data.errors import DataError

Array = NDArray[np.generic]
# how the arrays of training and test samples are called in npz files
SAMPLES = ("x_train", "y_train", "x_test", "y_test")
# np.load raises these too when a file is none of its kind: TypeError for a lone array,
# RuntimeError for zip features that no npz file has, TokenError for a header that breaks off
NOT_NUMPY = (
    *(TypeError, RuntimeError, MemoryError, zipfile.BadZipFile),
    *(lzma.LZMAError, tokenize.TokenError),
)


def missing(name: str, folder: Path, file: str = "") -> DataError:
    """The error for a data set, or one file of it, that is not in its folder."""
    fault = f"{file} of {name} is missing in" if file else f"no file of {name} is in"
    return DataError(f"{fault} {folder}; {where_to_get(name)}")


def required(name: str, path: Path) -> Path:
    """A file that the data set ``name`` cannot do without."""
    if not path.is_file():
        raise missing(name, path.parent, path.name)
    return path


def damaged(path: Path, reason: object) -> DataError:
    """The error for a file that cannot be read as what it should be."""
    return DataError(
        f"{path} cannot be read ({reason}); it is damaged or of another kind, so put a good copy "
        "in its place"
    )


@contextmanager
def readable(path: Path, *signs: type[Exception]) -> Iterator[None]:
    """Refuse a file that cannot be read; ``signs`` are the errors of its own format."""
    expected: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, zlib.error, *signs)
    try:
        yield
    except expected as error:
        raise damaged(path, error) from error


def read_npz(path: Path, keys: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Array]:
    """The arrays with these names of an npz file; the optional ones where they are there."""
    with readable(path, *NOT_NUMPY), np.load(path, allow_pickle=False) as arrays:
        absent = [key for key in keys if key not in arrays]
        if absent:
            raise DataError(
                f"{path} holds {', '.join(arrays) or 'nothing'} but not {', '.join(absent)}; "
                "store the arrays under these names"
            )
        found = {key: arrays[key] for key in keys + optional if key in arrays}
    for key, value in found.items():
        if not isinstance(value, np.ndarray):
            raise DataError(f"{key} in {path} is no array; write the file with numpy.savez")
    return found


def map_npy(path: Path) -> Array:
    """An npy file as an array whose pages are read when they are used."""
    with readable(path, *NOT_NUMPY):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise damaged(path, "it is an npz file and no single array")
    return array


def channels_first(images: Array) -> Array:
    """``[N, H, W]`` or ``[N, H, W, C]`` to ``[N, C, H, W]``; other shapes are left to the checks.

    >>> channels_first(np.zeros((5, 28, 28, 3))).shape, channels_first(np.zeros((5, 8, 8))).shape
    ((5, 3, 28, 28), (5, 1, 8, 8))
    """
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4:
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return images


def number(writers: Array) -> NDArray[np.int64]:
    """Names of any kind to ``0 .. n - 1`` in sorted order.

    >>> number(np.array(["f0098", "f0012", "f0098"]))
    array([1, 0, 1])
    """
    try:
        return np.unique(writers, return_inverse=True)[1].reshape(-1).astype(np.int64)
    except TypeError as error:
        raise DataError(
            f"the writers of the samples are not of one kind ({error}); name every writer, all by "
            "texts or all by numbers"
        ) from error


def find_idx(folder: Path, file: str) -> Path:
    """``file`` of the data set after which the folder is named, compressed (``.gz``) or not."""
    plain = folder / file
    return plain if plain.is_file() else required(folder.name, folder / f"{file}.gz")


TYPES: dict[int, np.dtype[np.generic]] = {0x08: np.dtype("u1"), 0x0C: np.dtype(">i4")}


def read_idx(path: Path, dimensions: int) -> Array:
    """The array in an idx file, compressed or not, which must have this many dimensions."""
    with readable(path):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header = 4 + 4 * dimensions
    if len(content) < header or content[:2] != b"\0\0" or content[3] != dimensions:
        raise damaged(path, f"it does not begin like an idx file of {dimensions} dimensions")
    kind = TYPES.get(content[2])
    if kind is None:
        raise damaged(path, f"its numbers have the unknown type {content[2]:#04x}")
    shape = tuple(np.frombuffer(content, ">u4", dimensions, offset=4).tolist())
    expected = header + math.prod(shape) * kind.itemsize
    if len(content) != expected:
        raise DataError(
            f"{path} holds {len(content)} bytes where its header announces {expected}, so it was "
            "cut short; delete it and get it again"
        )
    return np.frombuffer(content, kind, offset=header).reshape(shape)
