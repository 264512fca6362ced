"""Where the operator's library is, also for a source tree that hides an installed build."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent

REMEDY = (
    "install a C++17 compiler and run "
    "'pip install --no-build-isolation --force-reinstall --no-deps .' in the source tree"
)
_EDITABLE = "run Python in another folder, or 'pip install --no-build-isolation -e .' in this one"


class NotBuilt(Exception):
    """One sentence: why there is no library, and the remedy."""


def library() -> Path:
    """The library of this package, or the one of an installed package with the same sources."""
    for folder in (PACKAGE, *_hidden()):
        for found in sorted(folder.glob("_kernels*.so")):
            if not _has_these_sources(folder):
                raise NotBuilt(
                    f"the source tree {PACKAGE.parent} hides the build in {folder.parent}, which "
                    f"was made from other sources ({_EDITABLE})"
                )
            return found
    raise NotBuilt(f"the native library was not built ({REMEDY})")


def _hidden() -> list[Path]:
    """Packages that Python would find if this one were not before them on its path."""
    folders = [Path(entry).resolve() / PACKAGE.name for entry in sys.path]
    return [folder for folder in folders if folder != PACKAGE]


def _has_these_sources(folder: Path) -> bool:
    """Equal Python files speak to equal libraries."""
    return folder == PACKAGE or all(
        (folder / path.relative_to(PACKAGE)).is_file()
        and (folder / path.relative_to(PACKAGE)).read_bytes() == path.read_bytes()
        for path in PACKAGE.rglob("*.py")
    )
