"""Plants each fault of mutants.toml in a copy of the project and runs the tests that must find it.

python tests/mutants/run.py             # all of them, about half an hour on two cores
python tests/mutants/run.py --only 3 8  # some of them, by number
python tests/mutants/run.py --check     # none: says which no longer fit the sources
python tests/mutants/run.py --planted   # without running the tests on sources without a fault first

Ends with 1 where a fault is missed, where its text no longer stands in the sources, or where a test
that is named here fails without it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCES = {".py", ".h", ".cpp", ".inl", ".md"}
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "runs", "demo", "__pycache__", ".*_cache", "*.egg-info"
)
# the tests of `make test`, without its three processes
PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not exhaustive")
TESTS_FAILED = 1


class Unfit(Exception):
    """A mutant that cannot be planted, or after which the tests cannot be run."""


def main() -> int:
    mutants = tomllib.loads((HERE / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=int, nargs="+", default=range(1, len(mutants) + 1))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--planted", action="store_true", help="after a `make test` that passed")
    arguments = parser.parse_args()
    chosen = {number: mutants[number - 1] for number in arguments.only}
    if arguments.check:
        return check(chosen)
    found = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(shutil.copytree(ROOT, Path(folder) / "copy", ignore=LEFT_OUT))
        for number, mutant in chosen.items():
            try:
                if not arguments.planted and not passes(copy, mutant["tests"]):
                    raise Unfit("its tests fail without it")
                word = "missed" if survives(mutant, copy) else "found"
            except Unfit as why:
                word = f"UNFIT, {why}"
            found += word == "found"
            print(f"{number:2} {word}: {mutant['fault']}", flush=True)
    print(f"{found} of {len(chosen)} found")
    return found != len(chosen)


def check(chosen: dict[int, dict[str, Any]]) -> int:
    """Name the faults that cannot be planted in the sources as they are."""
    unfit = 0
    for number, mutant in chosen.items():
        try:
            place_of(mutant, ROOT)
        except Unfit as why:
            unfit += 1
            print(f"{number:2} UNFIT, {why}: {mutant['fault']}")
    return unfit > 0


def survives(mutant: dict[str, Any], copy: Path) -> bool:
    """Plant a fault, run its tests, and take the fault away again."""
    path, text = place_of(mutant, copy)
    native = mutant["where"].startswith("csrc")
    path.write_text(text.replace(mutant["old"], mutant["new"]), encoding="utf-8")
    try:
        if native:
            build(copy)
        return passes(copy, mutant["tests"])
    finally:
        path.write_text(text, encoding="utf-8")
        if native:
            for library in (ROOT / "specgrad_kernels").glob("*.so"):
                shutil.copy2(library, copy / "specgrad_kernels")


def place_of(mutant: dict[str, Any], copy: Path) -> tuple[Path, str]:
    """The one file in which the text to change stands once."""
    where = copy / mutant["where"]
    paths = [where] if where.is_file() else [p for p in where.rglob("*") if p.suffix in SOURCES]
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(paths)}
    places = [path for path, text in texts.items() for _ in range(text.count(mutant["old"]))]
    if len(places) != 1:
        raise Unfit(f"`old` stands {len(places)} times below {mutant['where']}, not once")
    return places[0], texts[places[0]]


def environment(copy: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(copy), str(copy / "python")])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def build(copy: Path) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=copy,
        env={**environment(copy), "SPECGRAD_BUILD_EXT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unfit(f"it does not compile: {done.stderr[-500:]}")


def passes(copy: Path, tests: list[str]) -> bool:
    done = subprocess.run(
        [sys.executable, *PYTEST, *tests],
        cwd=copy,
        env=environment(copy),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, TESTS_FAILED):
        raise Unfit(f"pytest ends with {done.returncode}: {done.stdout[-500:]}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
