"""The facts about public data sets: what they are, their files, checksums and addresses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """One file of an official host; ``size`` in bytes and checksums where they are published."""

    name: str
    url: str
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Entry:
    """One data set by name.

    files: what ``fetch`` downloads into the folder named like the data set
    provides: what is there afterwards, and what the loader reads
    by_hand: how else the files can be had, in one sentence
    """

    name: str
    what: str
    files: tuple[RemoteFile, ...] = ()
    provides: tuple[str, ...] = ()
    by_hand: str = ""


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("digits", "handwritten digits, 1,797 grey images of 8 x 8, inside scikit-learn"),
    )
}
