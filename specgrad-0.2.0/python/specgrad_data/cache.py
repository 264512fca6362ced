"""Cache of decoded data sets."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from specgrad_data.dataset import Split
from specgrad_data.errors import DataError, DataWarning
from specgrad_data.files import read_npz

# raise it when a loader decodes to other arrays than before
VERSION = 1
_LOG = logging.getLogger(__name__)


def cache_folder() -> Path:
    """``$SPECGRAD_CACHE``, or ``specgrad`` in the user's cache folder."""
    given = os.environ.get("SPECGRAD_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specgrad"


def cached(
    name: str,
    sources: Iterable[Path],
    decode: Callable[[], tuple[Split, Split]],
    **parameters: object,
) -> tuple[Split, Split]:
    """Training and test split from ``decode``, or from the cache where nothing has changed.

    A source has changed when its place, length or time of change has. A cache that cannot be
    written or read costs time, never the run.
    """
    digest = hashlib.sha256(f"{VERSION}{sorted(parameters.items())}".encode())
    for source in sources:
        status = source.stat()
        digest.update(f"{source.resolve()}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    path = cache_folder() / f"{name}-{digest.hexdigest()[:16]}.npz"
    if path.exists():
        try:
            arrays = read_npz(path, ("train_x", "train_y", "test_x", "test_y"), ("writers",))
            train = Split(arrays["train_x"], arrays["train_y"], arrays.get("writers"))
            return train, Split(arrays["test_x"], arrays["test_y"])
        except DataError as error:
            warnings.warn(f"{error}: it is a cache and is made anew", DataWarning, stacklevel=2)
    _LOG.info("decoding %s once, to be kept in %s", name, path)
    train, test = decode()
    try:
        _write(path, train, test)
    except OSError as error:
        warnings.warn(
            f"decoded {name} cannot be kept in {path.parent} ({error}); set SPECGRAD_CACHE to a "
            "folder that can be written",
            DataWarning,
            stacklevel=2,
        )
    return train, test


def _write(path: Path, train: Split, test: Split) -> None:
    arrays = {"train_x": train.x, "train_y": train.y, "test_x": test.x, "test_y": test.y}
    if train.writers is not None:
        arrays["writers"] = train.writers
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with open(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
