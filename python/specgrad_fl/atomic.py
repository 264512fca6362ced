"""Files that appear whole or not at all, no more readable than the folder they are in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from specgrad_fl.errors import RunError

# nobody else ends a name like this, so that what a crash left half written can be removed
TEMPORARY = ".specgrad-tmp"
# of folders that hold what clients have or learned
PRIVATE = 0o700


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write to; it takes the place of ``path`` when the block succeeds.

    The data reach the disk before the name does, so that a crash of the machine leaves the old
    file or the new one. A failure leaves the old file and no litter.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        allowed = path.parent.stat().st_mode & 0o666
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, allowed))
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        # where nothing can be written, nothing can be removed, and the reason is the first one
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def make_folder(path: Path, mode: int = 0o777) -> None:
    """A folder to write to, with those above it; ``mode`` is that of the last one, if new."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Replace the contents of a text file."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, contents: bytes) -> None:
    """Replace the contents of a file."""
    with replacing(path) as temporary:
        temporary.write_bytes(contents)


def cannot_write(path: Path, error: OSError) -> RunError:
    """The refusal for a full disk, a missing permission and their like."""
    reason = error.strerror or str(error)
    return RunError(
        f"cannot write {path}: {reason}; everything saved before is intact, so make room or "
        "choose another --out, and resume"
    )
