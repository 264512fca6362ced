"""Builds the native extensions; everything else is in pyproject.toml.

SPECGRAD_BUILD_EXT=0  installs without native code
SPECGRAD_BUILD_EXT=1  fails when the native code cannot be built (by default it is left out)
SPECGRAD_SANITIZE=1   builds with AddressSanitizer and UndefinedBehaviorSanitizer
SPECGRAD_KERNELS=FILE takes the operator's library, which is the same for every Python, from there
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup

MODE = os.environ.get("SPECGRAD_BUILD_EXT", "auto")
# torch 2.10: the oldest release whose stable ABI has every call that the operator makes
TORCH_TARGET = "-DTORCH_TARGET_VERSION=0x020a000000000000"


def native_build():
    """The extensions and the build command, for a machine with torch and a compiler."""
    import pybind11
    from torch.utils import cpp_extension

    flags = ["-O3", "-g0", "-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra"]
    # float16 without F16C is converted by functions that libgcc_s has from GCC 12 on only: a wheel
    # takes them along
    link = ["-l:libgcc.a"]
    headers = sorted(str(path) for end in ("h", "inl") for path in Path("csrc").glob(f"*.{end}"))
    if os.environ.get("SPECGRAD_SANITIZE") == "1":
        sanitize = "-fsanitize=address,undefined"
        flags += [sanitize, "-fno-sanitize-recover=undefined", "-g", "-O1"]
        link += [sanitize]
    kernels = Extension(
        "specgrad_kernels._kernels",
        sources=[
            "csrc/binding.cpp",
            "csrc/filters.cpp",
            "csrc/cpu.cpp",
            "csrc/kernels.cpp",
            "csrc/kernels_portable.cpp",
            "csrc/kernels_avx2.cpp",
            "csrc/kernels_avx512.cpp",
        ],
        include_dirs=["csrc", *cpp_extension.include_paths()],
        library_dirs=cpp_extension.library_paths(),
        libraries=["torch_cpu"],
        extra_compile_args=[*flags, TORCH_TARGET],
        extra_link_args=link,
        language="c++",
        depends=headers,
        py_limited_api=True,
    )
    cpu = Extension(
        "specgrad_kernels._cpu",
        sources=["csrc/cpu_module.cpp", "csrc/cpu.cpp"],
        include_dirs=["csrc", pybind11.get_include()],
        extra_compile_args=flags,
        extra_link_args=link,
        language="c++",
        depends=headers,
    )

    class BuildOrExplain(cpp_extension.BuildExtension):
        def build_extension(self, ext):
            ready = os.environ.get("SPECGRAD_KERNELS")
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
                print(
                    f"specgrad: native code left out, plain PyTorch will be used: {error}",
                    file=sys.stderr,
                )
                self.extensions = []

    return [kernels, cpu], {"build_ext": BuildOrExplain}


def native_build_or_none():
    if MODE == "0":
        return [], {}
    try:
        return native_build()
    except ImportError as error:
        if MODE == "1":
            raise
        print(f"specgrad: native code left out, {error}", file=sys.stderr)
        return [], {}


extensions, commands = native_build_or_none()
setup(ext_modules=extensions, cmdclass=commands)
