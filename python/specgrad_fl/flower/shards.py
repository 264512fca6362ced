"""A client's own samples in one file, so that a node reads its own clients' data and no others.

``client-000003.safetensors`` holds ``train_x`` (``uint8 [N, H, W, C]`` images, or ``int64 [N, L]``
token ids) and ``train_y`` (``int64 [N]``).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialised

from specgrad_fl import storage
from specgrad_fl.errors import RunError

_NAME = re.compile(r"client-(\d{6,})\.safetensors")


def path_of(folder: Path, client: int) -> Path:
    """The file of a client.

    >>> path_of(Path("data"), 3).name
    'client-000003.safetensors'
    """
    return folder / f"client-{client:06d}.safetensors"


def write(folder: Path, client: int, x: NDArray[Any], y: NDArray[Any]) -> None:
    """Store a client's samples: ``x`` as images ``uint8 [N, H, W, C]`` or tokens ``int64``."""
    if len(x) != len(y) or not len(y):
        raise RunError(
            f"client {client} has {len(x)} samples and {len(y)} labels; give one label to each "
            "of at least one sample"
        )
    contents = {"train_x": np.ascontiguousarray(x), "train_y": np.ascontiguousarray(y, np.int64)}
    storage.make_folder(folder, storage.PRIVATE)
    with storage.replacing(path_of(folder, client)) as temporary:
        temporary.write_bytes(serialised(contents))


def clients_in(folder: Path) -> list[int]:
    """The clients whose files are in a folder."""
    if not folder.is_dir():
        raise RunError(
            f"there is no data folder {folder}; set `data` in the SuperNode's --node-config to the "
            "folder with its clients' files"
        )
    found = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def read(folder: Path, client: int, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Arrays of a client."""
    path = path_of(folder, client)
    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"the data of client {client} cannot be read from {path}: {error}; write the file again"
        ) from error


def fingerprint(x: NDArray[Any], y: NDArray[Any]) -> str:
    """Tells whether two parties mean the same samples."""
    digest = hashlib.sha256()
    for array in (x, y.astype(np.int64)):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]
