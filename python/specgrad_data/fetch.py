"""Downloading the official files of a data set: resumed, verified, unpacked."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from specgrad_data.archive import unpack
from specgrad_data.catalog import ENTRIES, Entry, RemoteFile, is_archive
from specgrad_data.errors import DataError, suggest

Progress = Callable[[int, int], None]
BLOCK = 1 << 18
TIMEOUT = 60
PART = ".part"
# a connection that breaks is taken up again where it stopped
ATTEMPTS = 4


def fetch(
    name: str, root: Path, progress: Progress | None = None, base_url: str | None = None
) -> Path:
    """Download what the data set ``name`` needs and return its folder, ``root / name``.

    progress: called with bytes so far and bytes in all (0 where the server does not say), for
        each file anew
    base_url: a mirror that holds the files under their own names

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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in entry.files:
            if not (is_archive(file.name) and _is_unpacked(entry, folder)):
                _fetch_file(file, folder, progress, base_url)
    except OSError as error:
        raise DataError(
            f"{name} cannot be written to {folder} ({error}); free some space or choose another "
            "folder"
        ) from error
    return folder


def is_here(entry: Entry, root: Path) -> bool:
    """Whether a data set can be read under ``root``, as far as its files tell."""
    if not (entry.files or entry.by_hand):
        return True
    found = (root / entry.name).rglob("*")
    return any(path.is_file() and path.suffix != PART for path in found)


def is_complete(entry: Entry, root: Path) -> bool:
    """Whether there is nothing left to download."""
    folder = root / entry.name

    def is_there(file: RemoteFile) -> bool:
        if is_archive(file.name):
            return _is_unpacked(entry, folder)
        return (folder / file.name).is_file() and difference(folder / file.name, file) is None

    return bool(entry.files) and all(is_there(file) for file in entry.files)


def _is_unpacked(entry: Entry, folder: Path) -> bool:
    """Whether the files of an archive are there, in their sizes; it must be known to hold some."""
    return bool(entry.provides) and all(
        (folder / file.path).is_file() and file.size in (None, (folder / file.path).stat().st_size)
        for file in entry.provides
    )


def _fetch_file(
    file: RemoteFile, folder: Path, progress: Progress | None, base_url: str | None
) -> None:
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
        _download(file, part, progress, base_url)
        problem = difference(part, file)
        if problem:
            part.unlink()
            raise DataError(
                f"{file.name} {problem}, so it is not the official file and was removed; fetch it "
                "again, or choose a mirror that has it"
            )
        os.replace(part, target)
    if is_archive(file.name):
        unpack(target, folder)
        if not there_before:
            target.unlink()


def difference(path: Path, file: RemoteFile) -> str | None:
    """What tells this file from the official one, or ``None``."""
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


def _download(
    file: RemoteFile, part: Path, progress: Progress | None, base_url: str | None
) -> None:
    """Bring ``part`` to its full length, taking up what is there already."""
    url = file.url
    if base_url is not None:
        url = base_url.rstrip("/") + "/" + urllib.parse.quote(file.name)
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"the address {url!r} is not http or https; choose another base_url")
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            _continue(url, file, part, progress)
            return
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError,
                TimeoutError) as error:  # fmt: skip
            failure = error
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                break
    reason = getattr(failure, "reason", None) or failure
    begun = _length(part)
    remedy = f"check the network, or put {file.name} in {part.parent} by hand and run it again"
    if begun:
        remedy = f"run the command again to go on after {begun} bytes"
    raise DataError(
        f"{file.name} cannot be downloaded from {url} ({reason}); {remedy}"
    ) from failure


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _continue(url: str, file: RemoteFile, part: Path, progress: Progress | None) -> None:
    """One connection: ask for what is missing, and append it."""
    begun = _length(part)
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
        # told apart from a disk that is full
        raise ConnectionError(f"the connection broke: {error}") from error
