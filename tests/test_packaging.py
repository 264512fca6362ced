"""Sources, builds and installs: what is incomplete or foreign is told in one sentence."""

import importlib.util
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from setuptools import Distribution

from specgrad_kernels.backends import built

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "specgrad_kernels"


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


@pytest.fixture
def build(monkeypatch):
    """The module setup.py, whose last line does nothing."""
    monkeypatch.setattr("setuptools.setup", lambda **given: None)
    monkeypatch.setenv("SPECGRAD_BUILD_EXT", "0")
    spec = importlib.util.spec_from_file_location("specgrad_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "MODE", "auto")
    return module


def no_compiler(build, monkeypatch, folder):
    monkeypatch.setenv("CXX", str(folder / "none"))
    return "there is no C++ compiler"


def old_compiler(build, monkeypatch, folder):
    script = folder / "old"
    script.write_text("#!/bin/sh\necho 'probe.cpp:3: error: no such builtin' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return "(probe.cpp:3: error: no such builtin); name a newer one in CXX"


def full_disk(build, monkeypatch, folder):
    monkeypatch.setattr(build, "check_compiler", lambda: None)
    monkeypatch.setattr(build.shutil, "disk_usage", lambda path: SimpleNamespace(free=3 << 20))
    return "has 3 MB left, and a build needs"


def no_torch(build, monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "torch", None)
    return "torch is not installed here; install torch first"


def old_torch(build, monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.9.1+cpu"))
    return "torch 2.9.1+cpu is older than 2.10; run 'pip install --upgrade torch'"


def other_platform(build, monkeypatch, folder):
    monkeypatch.setattr(build, "LINUX", False)
    return "was tried on Linux alone"


@pytest.mark.parametrize(
    "cause", [no_compiler, old_compiler, full_disk, no_torch, old_torch, other_platform]
)
@pytest.mark.parametrize("mode", ["auto", "1"])
def test_a_build_that_cannot_be_says_why(cause, mode, build, monkeypatch, tmp_path, capsys):
    """The package is installed without native code, unless that was asked for."""
    if cause is other_platform and mode == "1":
        pytest.skip("asked for, it is tried")
    monkeypatch.setattr(sys, "path", [*sys.path])
    sentence = cause(build, monkeypatch, tmp_path)
    monkeypatch.setattr(build, "MODE", mode)
    if mode == "1":
        with pytest.raises(SystemExit, match=re.escape(sentence)):
            build.native_build_or_none()
        return
    assert build.native_build_or_none() == ([], {})
    command = build.PythonFiles(Distribution())
    command.ensure_finalized()
    command.build_lib = str(tmp_path)
    (tmp_path / "specgrad_kernels").mkdir()
    command.run()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("specgrad: installed without native code, to run on plain PyTorch: ")
    assert sentence in said
    note = tmp_path / build.NOTE
    assert said.endswith(note.read_text())
    command.reason = None
    command.run()
    assert not note.exists()


def test_an_install_says_why_its_build_left_native_code_out(copied):
    """Also from a source tree that hides it; pip shows nothing of a build."""
    copied.joinpath("not_built.txt").write_text("there is no C++ compiler 'g++'; install GCC 12")
    tree = shutil.copytree(copied, copied.parent / "tree" / copied.name)
    (tree / "not_built.txt").unlink()
    for folders in ([copied.parent], [tree.parent, copied.parent]):
        done = run_python(SHOW, *folders)
        assert done.stdout == (
            "True the native library was not built (there is no C++ compiler 'g++'; "
            "install GCC 12)\n"
        ), done.stderr


def test_a_setuptools_that_cannot_read_the_project_is_named(build, monkeypatch):
    monkeypatch.setattr(build.setuptools, "__version__", "65.5.0")
    with pytest.raises(SystemExit, match=r"setuptools 65\.5\.0 is older than 77; run 'pip"):
        build.check_setuptools()


def run_python(code, *folders):
    """Python with these folders first on its path."""
    path = os.pathsep.join(map(str, folders))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), "-c", code]
    return subprocess.run(command, env=environment, cwd=folders[0], capture_output=True, text=True)


@pytest.fixture
def copied(tmp_path):
    """A copy of the package without native code."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    return shutil.copytree(PACKAGE, tmp_path / "copied" / "specgrad_kernels", ignore=ignored)


SHOW = "import torch; torch.manual_seed(0); import specgrad_kernels as s; g = torch.randn(99)\n"
SHOW += "s.filter_grads_([g]); print(bool(abs(g.mean()) < 1e-6), s.backends.report()['cpp'])"
# an editable install would find in the source tree what a copy lacks
LOAD = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f)]\n"
LOAD += "import specgrad_kernels"


@pytest.mark.parametrize(
    ("machine", "sections", "wrong"),
    [
        (62, 64, "was built for x86_64,"),
        (183, 64, "was built for aarch64,"),
        (62, 9999, "is cut off"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_named_and_not_used(copied, machine, sections, wrong):
    """Another processor's, which the loader says not to exist; half a file, which would crash."""
    if platform.machine() in wrong:
        pytest.skip("this processor's own")
    identity = b"\x7fELF\x02\x01\x01"
    numbers = (3, machine, 1, 0, 64, sections, 0, 64, 56, 9, 64, 30, 29)
    header = struct.pack("<16sHHIQQQI6H", identity, *numbers)
    library = copied / "_kernels.abi3.so"
    library.write_bytes(header + bytes(4096))
    done = run_python(SHOW, copied.parent)
    said = f"True the native library does not load: {library} {wrong}"
    assert done.stdout.startswith(said), done.stderr
    assert built.REMEDY in done.stdout


def test_a_half_installed_package_says_so(copied):
    (copied / "layers.py").unlink()
    done = run_python(LOAD, copied.parent)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: files of specgrad in {copied} are missing")
    assert "specgrad_kernels.layers" in last
    assert "pip install --force-reinstall" in last


def test_files_of_two_versions_are_told(copied):
    (copied / "spec.py").write_text("class FilterSpec: pass\n")
    done = run_python(LOAD, copied.parent)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: files of specgrad in {copied} are missing or of two")


def test_two_versions_on_the_path_are_named(copied, tmp_path):
    other = tmp_path / "other" / "specgrad_kernels"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text('__version__ = "0.0.1"\n')
    done = run_python(LOAD, copied.parent, other.parent)
    assert f"in {copied.parent} hides specgrad 0.0.1 in {other.parent}; run 'pip" in done.stderr
    (other / "__init__.py").write_text((copied / "__init__.py").read_text())
    done = run_python(LOAD, copied.parent, other.parent)
    assert done.stderr == ""


WITHOUT_POSIX = """
import os, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "pwd", "grp", "termios"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import torch, numpy
sys.meta_path.insert(0, Missing())
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules.pop(name, None)
for name in ("fork", "geteuid", "sched_getaffinity", "killpg"):
    delattr(os, name)
sys.platform = "win32"
"""


def test_the_op_runs_where_there_is_no_posix(copied):
    """As on Windows; the trainer, which locks files, refuses in a sentence."""
    trainer = "from specgrad_fl.cli import main\nsys.exit(main(['train', '--rounds', '1']))"
    done = run_python(f"{WITHOUT_POSIX}{SHOW}\n{trainer}", copied.parent, ROOT / "python")
    assert done.stdout.startswith("True the native library was not built (there are builds for ")
    assert done.stderr == (
        "specgrad-fl: the trainer needs Linux or macOS, and this is win32; run it in WSL (the op, "
        "specgrad_kernels, runs here)\n"
    )
    assert done.returncode == 2
