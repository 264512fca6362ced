"""Unpacking an archive that may mean harm: nothing is written outside its folder."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from specgrad_data.errors import DataError

# twice the largest data set that is known here
LARGEST = 8 * 2**30
# name, whether it is a plain file or directory, size, and what extracts it into a folder
Member = tuple[str, bool, int, Callable[[Path], object]]


def unpack(archive: Path, folder: Path, largest: int = LARGEST) -> None:
    """Unpack a tar or zip file into ``folder``; what is in it appears whole or not at all.

    Only plain files and directories with relative names are accepted, of at most ``largest``
    bytes together. Files of the same name that were there before are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder) as scratch:
        fresh = Path(scratch) / "new"
        fresh.mkdir()
        total = 0
        try:
            for name, plain, size, extract in _members(archive):
                total += size
                reason = _reason_to_refuse(name, plain, total, largest)
                if reason:
                    raise DataError(
                        f"{archive} {reason}; do not use this file, and fetch the official one"
                    )
                extract(fresh)
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise DataError(
                f"{archive} is damaged or not a tar or zip file ({error}); delete it and fetch it "
                "again"
            ) from error
        for item in sorted(fresh.iterdir()):
            _move_into_place(item, folder / item.name, Path(scratch) / "old")


def _members(archive: Path) -> Iterator[Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as package:
            for entry in package.infolist():
                kind = stat.S_IFMT(entry.external_attr >> 16)
                plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
                yield entry.filename, plain, entry.file_size, partial(package.extract, entry)
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                plain = member.isreg() or member.isdir()
                yield member.name, plain, member.size, partial(tar.extract, member, filter="data")


def _reason_to_refuse(name: str, plain: bool, total: int, largest: int) -> str:
    """Absolute names, names with ``..``, Windows' drives and separators, links, bombs."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or any(sign in name for sign in "\\:\0"):
        return f"wants to write to {name!r}, outside its folder"
    if not plain:
        return f"holds {name!r}, a link or device rather than a file"
    if total > largest:
        return f"unpacks to more than {largest} bytes, larger than any known data set"
    return ""


def _move_into_place(item: Path, target: Path, aside: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        # a directory cannot be replaced in one step unless it is empty
        os.replace(target, aside)
        os.replace(item, target)
        shutil.rmtree(aside)
    else:
        os.replace(item, target)
