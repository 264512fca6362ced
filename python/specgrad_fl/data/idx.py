"""The idx format of MNIST and its kin: a big-endian header, then the numbers."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from specgrad_fl.data.base import DataError
from specgrad_fl.data.files import Array, damaged, missing

TYPES: dict[int, np.dtype[np.generic]] = {0x08: np.dtype("u1"), 0x0C: np.dtype(">i4")}


def find_idx(folder: Path, name: str, dataset: str) -> Path:
    """``name`` in the folder, compressed (``.gz``) or not."""
    for candidate in (folder / name, folder / (name + ".gz")):
        if candidate.is_file():
            return candidate
    raise missing(dataset, folder, name + ".gz")


def read_idx(path: Path, dimensions: int) -> Array:
    """The array in an idx file, which must have this many dimensions."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:2] != b"\0\0" or content[3] != dimensions:
        raise damaged(path, f"it does not begin like an idx file of {dimensions} dimensions")
    if content[2] not in TYPES:
        raise damaged(path, f"its numbers have the unknown type {content[2]:#04x}")
    kind = TYPES[content[2]]
    shape = tuple(np.frombuffer(content, ">u4", dimensions, offset=4).tolist())
    expected = header + math.prod(shape) * kind.itemsize
    if len(content) != expected:
        raise DataError(
            f"{path} holds {len(content)} bytes where its header announces {expected}, so it was "
            "cut short; delete it and get it again"
        )
    return np.frombuffer(content, kind, offset=header).reshape(shape)
