"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specgrad_fl.errors import RunError

TEMPORARY = ".tmp"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write to; it takes the place of ``path`` when the block succeeds.

    The data reach the disk before the name does, so that a crash of the machine leaves the old
    file or the new one. A failure leaves the old file and no litter.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def make_folder(path: Path) -> None:
    """A folder to write to, with those above it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Replace the contents of a text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def cannot_write(path: Path, error: OSError) -> RunError:
    """The refusal for a full disk, a missing permission and their like."""
    reason = error.strerror or str(error)
    return RunError(
        f"cannot write {path}: {reason}; everything saved before is intact, so make room or "
        "choose another --out, and resume"
    )
