"""Unpacking an archive that may mean harm: nothing is written outside its folder."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from specgrad_data.errors import DataError

# twice the largest data set that is known here
LARGEST = 8 * 2**30


def unpack(archive: Path, folder: Path, largest: int = LARGEST) -> None:
    """Unpack a tar or zip file into ``folder``; what is in it appears whole or not at all.

    Only plain files and directories with relative names are accepted, of at most ``largest``
    bytes together. Files of the same name that were there before are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder) as scratch:
        fresh = Path(scratch) / "new"
        fresh.mkdir()
        try:
            if zipfile.is_zipfile(archive):
                _unpack_zip(archive, fresh, largest)
            else:
                _unpack_tar(archive, fresh, largest)
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError,
                NotImplementedError) as error:  # fmt: skip
            raise DataError(
                f"{archive} is damaged or not a tar or zip file ({error}); delete it and fetch it "
                "again"
            ) from error
        for item in sorted(fresh.iterdir()):
            _move_into_place(item, folder / item.name, Path(scratch) / "old")


def _move_into_place(item: Path, target: Path, aside: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        # a directory cannot be replaced in one step unless it is empty
        os.replace(target, aside)
        os.replace(item, target)
        shutil.rmtree(aside)
    else:
        os.replace(item, target)


def _check_name(name: str, archive: Path) -> None:
    """Refuse absolute names, names with ``..`` and Windows' drives and separators."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise DataError(
            f"{archive} wants to write to {name!r}, outside its folder; do not use this file, and "
            "fetch the official one"
        )


def _check_kind(plain: bool, name: str, archive: Path) -> None:
    if not plain:
        raise DataError(
            f"{archive} holds {name!r}, a link or device rather than a file; do not use this "
            "archive, and fetch the official one"
        )


class _Allowance:
    """Bytes that may still be written."""

    def __init__(self, archive: Path, largest: int) -> None:
        self._archive = archive
        self._largest = largest
        self._used = 0

    def use(self, size: int) -> None:
        self._used += size
        if self._used > self._largest:
            raise DataError(
                f"{self._archive} unpacks to more than {self._largest} bytes, larger than any "
                "known data set; do not use this file, and fetch the official one"
            )


def _checked_members(
    tar: tarfile.TarFile, archive: Path, largest: int
) -> Iterator[tarfile.TarInfo]:
    allowance = _Allowance(archive, largest)
    for member in tar:
        _check_name(member.name, archive)
        _check_kind(member.isreg() or member.isdir(), member.name, archive)
        allowance.use(member.size)
        yield member


def _unpack_tar(archive: Path, folder: Path, largest: int) -> None:
    with tarfile.open(archive) as tar:
        for member in _checked_members(tar, archive, largest):
            tar.extract(member, folder, filter="data")


def _unpack_zip(archive: Path, folder: Path, largest: int) -> None:
    allowance = _Allowance(archive, largest)
    with zipfile.ZipFile(archive) as package:
        for member in package.infolist():
            _check_name(member.filename, archive)
            kind = stat.S_IFMT(member.external_attr >> 16)
            _check_kind(kind in (0, stat.S_IFREG, stat.S_IFDIR), member.filename, archive)
            allowance.use(member.file_size)
            package.extract(member, folder)
