"""Builds the native extensions; everything else is in pyproject.toml.

SPECGRAD_BUILD_EXT=0  installs without native code
SPECGRAD_BUILD_EXT=1  fails when the native code cannot be built (by default it is left out)
SPECGRAD_WHEEL=1      makes one wheel for every Python from 3.10 on: without the pybind11 module
SPECGRAD_SANITIZE=1   builds with AddressSanitizer and UndefinedBehaviorSanitizer, or, if it is
                      `thread`, with ThreadSanitizer
SPECGRAD_KERNELS=FILE takes the operator's library from there, such as one for another processor
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

MODE = os.environ.get("SPECGRAD_BUILD_EXT", "auto")
FOR_ALL_PYTHONS = os.environ.get("SPECGRAD_WHEEL") == "1"
LINUX = sys.platform == "linux"
OLDEST_TORCH = (2, 10)  # the oldest release whose stable ABI has every call that the operator makes
TORCH_TARGET = f"-DTORCH_TARGET_VERSION=0x{OLDEST_TORCH[0]:02x}{OLDEST_TORCH[1]:02x}000000000000"
FLAGS = ["-O3", "-g0", "-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra"]
NEEDED_MEGABYTES = 100  # objects and temporary files of a build
# pip shows nothing of a build: `python -m specgrad_kernels` reads here why there is no native code
NOTE = "specgrad_kernels/not_built.txt"
# pip keeps what is installed in this version, and the wheel that it made of a source distribution
AGAIN = "install again with --force-reinstall --no-deps --no-build-isolation --no-cache-dir"
# what compilers older than GCC 12 and clang 16 lack
PROBE = """
#include <string_view>
typedef float Four __attribute__((vector_size(16)));
Four turned(Four a, Four b) { return __builtin_shufflevector(a, b, 1, 2, 3, 4); }
#if !defined(__aarch64__)
_Float16 halved(float a) { return static_cast<_Float16>(a / 2); }
#endif
"""


class LeftOut(Exception):
    """One sentence: why there will be no native code, and the remedy."""


def check_setuptools():
    """Refuse releases that cannot read pyproject.toml, such as those of new environments."""
    if int(setuptools.__version__.partition(".")[0]) < 77:
        sys.exit(
            f"specgrad: setuptools {setuptools.__version__} is older than 77; run "
            "'pip install --upgrade setuptools' and install again"
        )


def check_torch():
    """Import the torch that the package will run with, also where pip isolates the build."""
    try:
        import torch
    except Exception:
        sys.path.append(sysconfig.get_path("purelib"))
        try:
            import torch
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
            wrong = "is not installed here" if missing else f"does not load here ({error})"
            raise LeftOut(f"torch {wrong}; install torch first, then {AGAIN}") from None
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version < OLDEST_TORCH:
        raise LeftOut(
            f"torch {torch.__version__} is older than {'.'.join(map(str, OLDEST_TORCH))}; "
            f"run 'pip install --upgrade torch' and {AGAIN}"
        )


def check_platform():
    """Refuse platforms on which the library was never tried."""
    if not LINUX and MODE != "1":
        raise LeftOut(
            f"the native library was tried on Linux alone, and this is {sys.platform}; "
            f"set SPECGRAD_BUILD_EXT=1 to build it with clang, and {AGAIN}"
        )


def check_compiler():
    """Compile three lines: a missing or old compiler is told apart before a long build."""
    compiler = os.environ.get("CXX") or ("g++" if LINUX else "clang++")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(PROBE)
        command = [*compiler.split(), "-std=c++17", "-c", str(source), "-o", f"{folder}/probe.o"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except OSError:
            raise LeftOut(
                f"there is no C++ compiler {compiler!r}; install GCC 12 or clang 16, or name "
                f"another in CXX, and {AGAIN}"
            ) from None
        except subprocess.CalledProcessError as error:
            errors = (line for line in error.stderr.splitlines() if "error" in line)
            said = next(errors, f"exit code {error.returncode}")
            raise LeftOut(
                f"the compiler {compiler!r} does not compile what GCC 12 and clang 16 do "
                f"({said.strip()}); name a newer one in CXX and {AGAIN}"
            ) from None


def check_disk():
    """Refuse to fill a disk."""
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        free = shutil.disk_usage(folder).free // 2**20
        if free < NEEDED_MEGABYTES:
            raise LeftOut(
                f"the disk of {folder} has {free} MB left, and a build needs {NEEDED_MEGABYTES}; "
                f"free some, or name another folder in TMPDIR, and {AGAIN}"
            )


def operator_extension(cpp_extension, link):
    """The operator: torch's stable ABI and Python's limited API."""
    only_exports = ["-Wl,--version-script=csrc/exports.map"] if LINUX else []
    return Extension(
        "specgrad_kernels._kernels",
        sources=sorted(map(str, set(Path("csrc").glob("*.cpp")) - {Path("csrc/cpu_module.cpp")})),
        include_dirs=["csrc", *cpp_extension.include_paths()],
        library_dirs=cpp_extension.library_paths(),
        libraries=["torch_cpu"],
        extra_compile_args=[*FLAGS, TORCH_TARGET],
        extra_link_args=[*link, *only_exports],
        language="c++",
        depends=headers(),
        # free-threaded Pythons before 3.15 have none
        py_limited_api=not sysconfig.get_config_var("Py_GIL_DISABLED"),
    )


def cpu_extension(link):
    """The pybind11 module, which serves tests and belongs to one Python; None without pybind11."""
    try:
        import pybind11
    except ImportError:
        return None
    return Extension(
        "specgrad_kernels._cpu",
        sources=["csrc/cpu_module.cpp", "csrc/cpu.cpp"],
        include_dirs=["csrc", pybind11.get_include()],
        extra_compile_args=FLAGS,
        extra_link_args=link,
        language="c++",
        depends=headers(),
    )


def headers():
    return sorted(
        str(path) for end in ("h", "inl", "map") for path in Path("csrc").glob(f"*.{end}")
    )


def native_build():
    """The extensions and the build command, or LeftOut."""
    check_platform()
    check_torch()
    ready = os.environ.get("SPECGRAD_KERNELS")
    if not ready:
        check_compiler()
        check_disk()
    from torch.utils import cpp_extension

    # float16 without F16C is converted by functions that libgcc_s has from GCC 12 on only: a wheel
    # takes them along
    link = ["-l:libgcc.a"] if LINUX else []
    sanitizers = {"1": "address,undefined", "thread": "thread"}
    if chosen := sanitizers.get(os.environ.get("SPECGRAD_SANITIZE", "")):
        sanitize = f"-fsanitize={chosen}"
        FLAGS.extend([sanitize, "-fno-sanitize-recover=undefined", "-g", "-O1"])
        link.append(sanitize)
    kernels = operator_extension(cpp_extension, link)
    cpu = None if FOR_ALL_PYTHONS else cpu_extension(link)

    class BuildOrExplain(cpp_extension.BuildExtension):
        def build_extension(self, ext):
            if ready and ext is kernels:
                target = Path(self.get_ext_fullpath(ext.name))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ready, target)
                return
            super().build_extension(ext)

        def run(self):
            try:
                super().run()
            except Exception as error:
                if MODE == "1":
                    raise
                self.extensions = []
                shutil.rmtree(self.build_temp, ignore_errors=True)  # it may fill the disk
                leave_out(
                    f"the build failed ({error}); to see its errors, {AGAIN} --verbose",
                    "." if self.editable_mode else self.build_lib,
                )

    return [ext for ext in (kernels, cpu) if ext], {"build_ext": BuildOrExplain}


def leave_out(reason, folder):
    """Say why there is no native code, now and in the package of this folder."""
    print(
        f"specgrad: installed without native code, to run on plain PyTorch: {reason}",
        file=sys.stderr,
    )
    Path(folder, NOTE).write_text(reason, encoding="utf-8")


class PythonFiles(build_py):
    """The build of what needs no compiler, with the note of this build and of none before."""

    reason = None

    def run(self):
        super().run()
        folder = "." if self.editable_mode else self.build_lib
        Path(folder, NOTE).unlink(missing_ok=True)
        if self.reason:
            leave_out(self.reason, folder)


def native_build_or_none():
    if MODE == "0":
        return [], {}
    try:
        return native_build()
    except LeftOut as reason:
        if MODE == "1":
            sys.exit(f"specgrad: {reason}")
        PythonFiles.reason = str(reason)
        return [], {}


check_setuptools()
extensions, commands = native_build_or_none()
options = {"bdist_wheel": {"py_limited_api": "cp310"}} if FOR_ALL_PYTHONS else {}
setup(ext_modules=extensions, cmdclass={"build_py": PythonFiles, **commands}, options=options)
