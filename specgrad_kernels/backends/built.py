"""Where the operator's library is, and other copies of the package on Python's path."""

from __future__ import annotations

import platform
import re
import struct
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent

_INSTALL = "'pip install --no-build-isolation --force-reinstall --no-deps .' in the source tree"
REMEDY = (
    f"install the wheel for this platform, or a C++17 compiler and run {_INSTALL}"
    if sys.platform == "linux"
    else f"there are builds for Linux alone, elsewhere it runs on plain PyTorch; to try one with "
    f"clang, set SPECGRAD_BUILD_EXT=1 and run {_INSTALL}"
)
_EDITABLE = "run Python in another folder, or 'pip install --no-build-isolation -e .' in this one"


class NotBuilt(Exception):
    """One sentence: why there is no library, and the remedy."""


def library() -> Path:
    """The library of this package, or the one of an installed package with the same sources."""
    folders = (PACKAGE, *hidden())
    for folder in folders:
        for found in sorted(folder.glob("_kernels*.so")):
            if not _has_these_sources(folder):
                raise NotBuilt(
                    f"the source tree {PACKAGE.parent} hides the build in {folder.parent}, which "
                    f"was made from other sources ({_EDITABLE})"
                )
            _check_file(found)
            return found
    notes = [folder / "not_built.txt" for folder in folders]  # setup.py left them
    told = next((note.read_text(encoding="utf-8") for note in notes if note.is_file()), REMEDY)
    raise NotBuilt(f"the native library was not built ({told})")


_MACHINES = {62: "x86_64", 183: "aarch64"}  # numbers of an ELF header


def _check_file(library: Path) -> None:
    """Refuse what ends the process when it is loaded, or what the loader says not to exist."""
    with library.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or not header.startswith(b"\x7fELF"):
        return
    machine, sections, size_of_one, count = struct.unpack("<18xH20xQ10xHH2x", header)
    wrong = None
    if library.stat().st_size < sections + size_of_one * count:
        wrong = "is cut off"
    elif _MACHINES.get(machine, machine) != platform.machine():
        wrong = f"was built for {_MACHINES.get(machine, machine)}, and this is {platform.machine()}"
    if wrong:
        raise NotBuilt(f"the native library does not load: {library} {wrong} ({REMEDY})")


def hidden() -> list[Path]:
    """Packages that Python would find if this one were not before them on its path."""
    folders = dict.fromkeys(Path(entry).resolve() / PACKAGE.name for entry in sys.path)
    return [each for each in folders if each != PACKAGE and (each / "__init__.py").is_file()]


def other_versions(version: str) -> list[str]:
    """A sentence for each copy on Python's path that has another version than this one."""
    sentences = []
    for folder in hidden():
        text = (folder / "__init__.py").read_text(encoding="utf-8", errors="replace")
        found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
        if found and found[1] != version:
            sentences.append(
                f"specgrad {version} in {PACKAGE.parent} hides specgrad {found[1]} in "
                f"{folder.parent}; run 'pip uninstall specgrad' until one is left, or Python in "
                "another folder"
            )
    return sentences


def _has_these_sources(folder: Path) -> bool:
    """Equal Python files speak to equal libraries."""
    return folder == PACKAGE or all(
        (folder / path.relative_to(PACKAGE)).is_file()
        and (folder / path.relative_to(PACKAGE)).read_bytes() == path.read_bytes()
        for path in PACKAGE.rglob("*.py")
    )
