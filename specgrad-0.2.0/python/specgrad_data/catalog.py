"""Public data sets: descriptions, files, checksums and addresses, from ``catalog.toml``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class RemoteFile:
    """One file of an official host; ``size`` in bytes and checksums where they are published.

    Without a published SHA-256 the first one that is downloaded is kept for all later ones.
    """

    name: str
    url: str
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Entry:
    """One data set by name.

    loader: module and function that read it; by default ``load`` in a module of its name
    files: what ``fetch`` downloads into the folder named like the data set
    provides: files that an archive unpacks there, and their sizes where they are known
    also: other files that the loader accepts, in words
    by_hand: how the files are had where nothing can be downloaded, in one clause
    """

    name: str
    what: str
    loader: str = ""
    files: tuple[RemoteFile, ...] = ()
    provides: Mapping[str, int | None] = field(default_factory=dict)
    also: str = ""
    by_hand: str = ""


STANDARD_CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur",
    "motion_blur", "zoom_blur", "snow", "frost", "fog", "brightness", "contrast",
    "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
# 50,000 images of 3,072 bytes behind a header
CORRUPTED_SIZE = 50_000 * 3072 + 128


def _read() -> Iterator[Entry]:
    """The entries of ``catalog.toml``, in its order."""
    text = Path(__file__).with_name("catalog.toml").read_text(encoding="utf-8")
    for name, entry in tomllib.loads(text).items():
        address = entry.pop("at", "")
        files = [RemoteFile(url=address.format(f["name"]), **f) for f in entry.pop("files", ())]
        each = entry.pop("each_corruption", "")
        corruptions = STANDARD_CORRUPTIONS + EXTRA_CORRUPTIONS if each else ()
        provides = {each.format(corruption): CORRUPTED_SIZE for corruption in corruptions}
        provides |= {path: size or None for path, size in entry.pop("provides", {}).items()}
        yield Entry(name, **entry, files=tuple(files), provides=provides)


ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _read()}


def where_to_get(name: str) -> str:
    """The remedy for a missing file, as the end of a sentence.

    >>> where_to_get("cifar10")  # doctest: +ELLIPSIS
    'run `specgrad-fl data fetch cifar10`, or put cifar-10-binary.tar.gz there and run it offline...
    """
    entry = ENTRIES[name]
    ways = []
    if entry.files:
        names = [file.name for file in entry.files]
        unpacked = " and run it offline to unpack" if any(map(is_archive, names)) else ""
        ways = [f"run `specgrad-fl data fetch {name}`", f"put {', '.join(names)} there{unpacked}"]
    if entry.by_hand:
        ways.append(entry.by_hand)
    if entry.also:
        ways.append(f"put there {entry.also}")
    return ", or ".join(ways)


def is_archive(name: str) -> bool:
    """True for a file that is unpacked after the download; a lone ``.gz`` is read as it is.

    >>> is_archive("cifar-10-binary.tar.gz"), is_archive("train-images-idx3-ubyte.gz")
    (True, False)
    """
    return name.endswith((".tar", ".tar.gz", ".tgz", ".zip"))
