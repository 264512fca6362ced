"""A source distribution holds all that a build from it needs."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def tracked_files(*folders):
    """Files that git knows, relative to the repository."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git repository to compare with")
    listed = subprocess.run(
        ["git", "ls-files", "--", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(listed.stdout.splitlines())


def test_source_distribution_is_complete(tmp_path):
    """Also where it is made without torch, so that no extension names its sources."""
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)]
    command += ["sdist", "--dist-dir", str(tmp_path / "dist")]
    environment = {**os.environ, "SPECGRAD_BUILD_EXT": "0"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as files:
        packed = {name.partition("/")[2] for name in files.getnames()}
    wanted = tracked_files("csrc", "specgrad_kernels", "python", "tests", "benchmarks", "docs")
    wanted |= {"setup.py", "pyproject.toml", "Makefile", "LICENSE", "README.md"}
    assert wanted - packed == set()
    assert not {name for name in packed if name.endswith((".so", ".pyc"))}
