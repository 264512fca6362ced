"""Writes the tables of docs/map.md: one line for each file, taken from the file itself.

python docs/write_map.py           # after adding, moving or renaming a file
python docs/write_map.py --check   # ends with 1 where the page is out of date
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "map.md"
FOLDERS = (
    "csrc",
    "specgrad_kernels",
    "python/specgrad_data",
    "python/specgrad_fl",
    "python/specgrad_study",
    "benchmarks",
)


def summary(path: Path) -> str:
    """The first sentence that a file says of itself."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".py", ".pyi"):
        told = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.match(r"(?:#pragma once\s*)?((?://.*\n)+)", text)
        told = re.sub(r"^// ?", "", comment[1], flags=re.MULTILINE) if comment else ""
    paragraph = " ".join(re.split(r"\n\s*\n", told)[0].split())
    return re.split(r"(?<=\.) ", paragraph)[0].rstrip(".:")


def files(folder: str) -> list[Path]:
    """Code files of a folder that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [Path(line) for line in listed.stdout.splitlines()]
    return [path for path in paths if path.suffix in (".py", ".h", ".cpp", ".inl")]


def table(folder: str) -> str:
    rows = ["| file | |", "|---|---|"]
    for path in files(folder):
        told = summary(ROOT / path)
        if told:
            rows.append(f"| `{path.relative_to(folder)}` | {told} |".replace("``", "`"))
    return "\n".join(rows)


def page(text: str) -> str:
    """The page with fresh tables between its marks."""
    for folder in FOLDERS:
        mark = re.escape(f"<!-- {folder} -->")
        fresh = f"<!-- {folder} -->\n{table(folder)}\n<!-- end -->"
        text = re.sub(rf"{mark}\n.*?<!-- end -->", lambda _, f=fresh: f, text, flags=re.DOTALL)
    return text


def main() -> int:
    stored = PAGE.read_text(encoding="utf-8")
    fresh = page(stored)
    if "--check" in sys.argv:
        return int(stored != fresh)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
