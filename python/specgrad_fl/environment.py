"""The machine and software of a run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from specgrad_kernels import available_backends

PACKAGES = (
    "specgrad",
    "torch",
    "numpy",
    "scikit-learn",
    "safetensors",
    "matplotlib",
    "pyarrow",
    "flwr",
)


def report() -> dict[str, Any]:
    """What may explain a difference between two runs."""
    return {
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_mib": _memory_mib(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "tf32": torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32,
        "filter_backends": available_backends(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": commit(),
    }


def commit() -> str | None:
    """The commit of this source tree; ``None`` for an installed package."""
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_mib() -> int | None:
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    if not all(name in os.sysconf_names for name in names):
        return None
    return os.sysconf(names[0]) * os.sysconf(names[1]) // 2**20
