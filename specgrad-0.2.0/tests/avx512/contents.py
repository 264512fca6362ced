"""Prints what the tests of the op read of this machine, as a list of files for xorriso.

Each lies in the emulated machine where it lies here.
"""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
READ = (
    "specgrad_kernels",
    "benchmarks",
    "tests/kernels",
    "tests/representatives.py",
    "pyproject.toml",
)


def contents() -> set[Path]:
    """Python, the packages that a first import loads, the libraries they need, the tree."""
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401

    import specgrad_kernels  # noqa: F401

    packages = Path(sysconfig.get_path("purelib"))
    executable = Path(sys._base_executable)
    found = {executable, Path(sysconfig.get_path("stdlib")), *packages.glob("*.libs")}
    found |= {TREE / name for name in READ}
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "/")
        if packages in file.parents:
            found.add(packages / file.relative_to(packages).parts[0])
    loaded = re.findall(r"/\S+\.so\S*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    command = ["ldd", str(executable), *sorted(set(loaded))]
    linked = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    libraries = {Path(name) for name in re.findall(r"(/\S+) \(0x", linked)}
    return found | {path for path in libraries if not found.intersection(path.parents)}


if __name__ == "__main__":
    for path in sorted(contents()):
        print(f"{path}={path.resolve()}")
