"""Downloading the official files of a data set: resumed, verified, unpacked."""

from __future__ import annotations

import errno
import hashlib
import http.client
import lzma
import os
import stat
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

from specgrad_data.catalog import ENTRIES, Entry, RemoteFile, is_archive
from specgrad_data.errors import DataError, DataWarning, suggest

Progress = Callable[[int, int], None]
BLOCK = 1 << 18
TIMEOUT = 60
PART = ".part"
# digests of files for which none is published, as `sha256sum` writes and checks them
PINS = "SHA256SUMS"
# a connection that breaks is taken up again where it stopped
ATTEMPTS = 4
# most bytes that an archive may unpack to: twice the largest known data set
LARGEST = 8 * 2**30
NOT_AN_ARCHIVE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
# errno of a damaged bz2 stream and of a seek before the start; others are errors of the disk
UNREADABLE = (None, errno.EINVAL)
# name, whether it is a plain file or directory, size, and what extracts it into a folder
Member = tuple[str, bool, int, Callable[[Path], object]]


def fetch(
    name: str,
    root: Path,
    progress: Progress | None = None,
    base_url: str | None = None,
    sha256: Mapping[str, str] | None = None,
) -> Path:
    """Download what the data set ``name`` needs and return its folder, ``root / name``.

    progress: called with bytes so far and bytes in all (0 where the server does not say), for
        each file anew
    base_url: a mirror that holds the files under their own names
    sha256: by name of the file, for those without a published one; where none is given, that of
        the first download is kept in ``SHA256SUMS`` and every later one must have it

    A file that is there already is verified instead of downloaded, so that an archive put there
    by hand is unpacked without a network.
    """
    if name not in ENTRIES:
        raise DataError(f"there is no data set {name!r}; {suggest(name, ENTRIES)}")
    entry = ENTRIES[name]
    folder = Path(root) / name
    if entry.by_hand:
        raise DataError(
            f"{name} has no single official file; {entry.by_hand}, and put them in {folder}"
        )
    if not entry.files:
        raise DataError(f"{name} needs no download; it is {entry.what}")
    given = dict(sha256 or {})
    for unknown in set(given) - {file.name for file in entry.files}:
        raise DataError(
            f"sha256 names {unknown!r}; {suggest(unknown, [f.name for f in entry.files])}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in entry.files:
            url = file.url
            if base_url is not None:
                url = base_url.rstrip("/") + "/" + urllib.parse.quote(file.name)
            if not (is_archive(file.name) and _is_unpacked(entry, folder)):
                expected = file.sha256 or given.get(file.name) or _pins(folder).get(file.name)
                _fetch_file(replace(file, sha256=expected), url, folder, progress)
    except OSError as error:
        raise DataError(
            f"{name} cannot be written to {folder} ({error}); free some space or choose another "
            "folder"
        ) from error
    return folder


def is_here(entry: Entry, root: Path) -> bool:
    """True where a data set can be read under ``root``, as far as its files tell."""
    if not (entry.files or entry.by_hand):
        return True
    found = (root / entry.name).rglob("*")
    return any(p.is_file() and p.suffix != PART and p.name != PINS for p in found)


def is_complete(entry: Entry, root: Path) -> bool:
    """True where nothing is left to download."""
    folder = root / entry.name

    def is_there(file: RemoteFile) -> bool:
        if is_archive(file.name):
            return _is_unpacked(entry, folder)
        return (folder / file.name).is_file() and difference(folder / file.name, file) is None

    return bool(entry.files) and all(is_there(file) for file in entry.files)


def _is_unpacked(entry: Entry, folder: Path) -> bool:
    """True where the files that the archive is known to hold are there, in their sizes."""
    return bool(entry.provides) and all(
        (folder / path).is_file() and size in (None, (folder / path).stat().st_size)
        for path, size in entry.provides.items()
    )


def _fetch_file(file: RemoteFile, url: str, folder: Path, progress: Progress | None) -> None:
    target = folder / file.name
    there_before = target.is_file()
    if there_before:
        problem = difference(target, file)
        if problem:
            raise DataError(
                f"{target} {problem}, so it is not the official file; delete it and fetch it again"
            )
    else:
        part = folder / (file.name + PART)
        _download(file, url, part, progress)
        problem = difference(part, file)
        if problem:
            part.unlink()
            raise DataError(
                f"{file.name} {problem}, so it is not the official file and was removed; fetch it "
                "again, or choose a mirror that has it"
            )
        os.replace(part, target)
    if file.sha256 is None:
        _pin(target)
    if is_archive(file.name):
        unpack(target, folder)
        if not there_before:
            target.unlink()


def _pins(folder: Path) -> dict[str, str]:
    """SHA-256 by name of the files of a folder that were pinned when they were first there."""
    path = folder / PINS
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except ValueError as error:
        raise DataError(f"{path} cannot be read ({error}); restore it from a copy") from error


def _pin(path: Path) -> None:
    """Keep the SHA-256 of a file for which none is known, and say so."""
    found = {**_pins(path.parent), path.name: checksum(path, "sha256")}
    pins = path.with_name(PINS)
    temporary = pins.with_name(PINS + PART)
    temporary.write_text("".join(f"{digest}  {name}\n" for name, digest in found.items()))
    os.replace(temporary, pins)
    warnings.warn(
        f"no SHA-256 of {path.name} is published; its size and MD5 are right, and {pins} now has "
        f"{found[path.name]}, which every later file must have",
        DataWarning,
        stacklevel=4,
    )


def difference(path: Path, file: RemoteFile) -> str | None:
    """The first difference between this file and the official one, or ``None``."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"has {size} bytes instead of {file.size}"
    for kind, expected in (("sha256", file.sha256), ("md5", file.md5)):
        if expected is not None:
            found = checksum(path, kind)
            return f"has {kind} {found} instead of {expected}" if found != expected else None
    return None


def checksum(path: Path, kind: str) -> str:
    """Hexadecimal ``md5`` or ``sha256`` of a file."""
    digest = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _download(file: RemoteFile, url: str, part: Path, progress: Progress | None) -> None:
    """Download the rest of ``part``."""
    _check_address(file, url)
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            _continue(file, url, part, progress)
            return
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError,
                TimeoutError) as error:  # fmt: skip
            failure = error
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                break
    reason = getattr(failure, "reason", None) or failure
    begun = part.stat().st_size if part.exists() else 0
    remedy = f"check the network, or put {file.name} in {part.parent} by hand and run it again"
    if begun:
        remedy = f"run the command again to go on after {begun} bytes"
    raise DataError(
        f"{file.name} cannot be downloaded from {url} ({reason}); {remedy}"
    ) from failure


def _check_address(file: RemoteFile, url: str) -> None:
    """Refuse an address that anybody on the way could answer, unless the SHA-256 is known."""
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme == "https" or (scheme == "http" and file.sha256):
        return
    why = (
        "is not https, and no SHA-256 of the file is known" if scheme == "http" else "is not https"
    )
    raise DataError(f"the address {url!r} {why}; choose another, or give the file's sha256")


def _continue(file: RemoteFile, url: str, part: Path, progress: Progress | None) -> None:
    """Request the missing bytes and append them."""
    begun = part.stat().st_size if part.exists() else 0
    if file.size is not None and begun > file.size:
        begun = 0
    if begun and begun == file.size:
        return
    request = urllib.request.Request(url, headers={"User-Agent": "specgrad-fl"})
    if begun:
        request.add_header("Range", f"bytes={begun}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and begun:
            # nothing follows: the part is whole, or of another file, which its checksum tells
            return
        raise
    with response:
        _check_address(file, response.url)  # it may have been sent on to another one
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            begun = 0  # the server sends the whole file, whatever was asked
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
            part.unlink(missing_ok=True)
            raise ConnectionError(f"{url} answered with another range than the one asked for")
        length = response.headers.get("Content-Length")
        total = (begun + int(length) if length else 0) or file.size or 0
        if file.size is not None and total != file.size:
            raise DataError(
                f"{url} offers {total} bytes instead of {file.size}, so it is not the official "
                f"file; put {file.name} in {part.parent} by hand"
            )
        with open(part, "r+b" if begun else "wb") as output:
            output.seek(begun)
            while block := _receive(response):
                output.write(block)
                if progress is not None:
                    progress(output.tell(), total)
            done = output.tell()
            output.flush()
            os.fsync(output.fileno())
    if total and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _receive(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(BLOCK)
    except OSError as error:
        # a broken connection, and no full disk
        raise ConnectionError(f"the connection broke: {error}") from error


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
        except (*NOT_AN_ARCHIVE, EOFError, RuntimeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in UNREADABLE:
                raise
            raise DataError(
                f"{archive} is damaged or not a tar or zip file ({error}); delete it and fetch it "
                "again"
            ) from error
        for item in sorted(fresh.iterdir()):
            target = folder / item.name
            if target.is_dir() and not target.is_symlink():
                # a directory cannot be replaced in one step unless it is empty
                os.replace(target, Path(scratch) / f"old {item.name}")
            os.replace(item, target)


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
