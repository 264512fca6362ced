"""Check a release, print its notes, and hash its files; the steps of release.yml, run by hand too.

python .ci/release.py check v0.2.0    version, changelog and CITATION.cff against the tag
python .ci/release.py notes v0.2.0    the section of the changelog, as Markdown
python .ci/release.py hashes dist     SHA256SUMS beside the files of a folder
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HASHES = "SHA256SUMS"


class ReleaseError(Exception):
    """A release that must not be made, in one sentence."""


def version_of(tag: str) -> str:
    """Strip the v of a tag such as v0.2.0 or v0.2.0rc1."""
    if not re.fullmatch(r"v\d+\.\d+\.\d+((a|b|rc)\d+)?", tag):
        raise ReleaseError(f"the tag {tag!r} is no version; write v0.2.0 or v0.2.0rc1")
    return tag[1:]


def section_of(changelog: str, version: str) -> str:
    """Return the text below `## VERSION (YEAR-MONTH-DAY)`, up to the next version."""
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ReleaseError(
            f"CHANGELOG.md has no section {version}; write ## {version} (YEAR-MONTH-DAY)"
        )
    if not found[1].strip():
        raise ReleaseError(f"the section {version} of CHANGELOG.md is empty; say what users notice")
    return found[1].strip() + "\n"


def check(tag: str, root: Path = ROOT) -> None:
    """Refuse a tag that version, changelog or CITATION.cff do not have."""
    version = version_of(tag)
    sources = {
        "specgrad_kernels/__init__.py": r'^__version__ = "(.*)"$',
        "CITATION.cff": r"^version: (.*)$",
    }
    for name, pattern in sources.items():
        text = (root / name).read_text(encoding="utf-8")
        found = re.search(pattern, text, re.MULTILINE)
        there = found[1] if found else "no version"
        if there != version:
            raise ReleaseError(f"{name} has {there}, the tag {tag}; make them agree")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section_of(changelog, version)
    unreleased = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if unreleased and unreleased[1].strip():
        raise ReleaseError(f"CHANGELOG.md has unreleased lines; move them into {version}")


def write_hashes(folder: Path) -> Path:
    """Write a file that `sha256sum --check` takes."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != HASHES)
    if not files:
        raise ReleaseError(f"{folder} has no files; run make wheels first")
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / HASHES).write_text("".join(lines), encoding="utf-8")
    return folder / HASHES


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=("check", "notes", "hashes"))
    parser.add_argument("what", help="a tag, or a folder for hashes")
    given = parser.parse_args(arguments)
    try:
        if given.step == "check":
            check(given.what)
            print(f"{given.what}: version, changelog and CITATION.cff agree")
        elif given.step == "notes":
            changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
            print(section_of(changelog, version_of(given.what)), end="")
        else:
            print(write_hashes(Path(given.what)))
    except (ReleaseError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
