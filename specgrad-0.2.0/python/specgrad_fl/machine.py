"""Hardware, software versions, device checks and memory of the machine that trains."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, version
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
    """Hardware and software versions of this machine, stored with every run."""
    return {
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_mib": _memory_mib(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "tf32": torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32,
        "filter_backends": available_backends(),
        "packages": {name: version(name) for name in PACKAGES},
        "commit": commit(),
    }


@functools.cache
def commit() -> str | None:
    """The commit of this source tree when first asked; ``None`` for an installed package."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    found = re.search(r"^model name\s*:(.*)", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _memory_mib() -> int | None:
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    if not all(name in os.sysconf_names for name in names):
        return None
    return os.sysconf(names[0]) * os.sysconf(names[1]) // 2**20


# mallopt(3), parameter and value: never trim, keep all but the largest blocks, grow by 64 MiB
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _TOP_PAD = (-1, 2**31 - 1), (-3, 32 * 2**20), (-2, 64 * 2**20)


def keep_freed_memory() -> bool:
    """Keep freed memory in the process for the next step; ``False`` if the allocator cannot.

    Every step frees its activations and asks for the same again. By default glibc returns them
    to the system and takes them back page by page, each page zeroed: ten thousand faults and a
    tenth of the time of a ResNet-20 step on a CPU. The peak stays the same.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    wanted = (_TRIM_THRESHOLD, _MMAP_THRESHOLD, _TOP_PAD)
    return mallopt is not None and all(mallopt(*setting) for setting in wanted)


def processes(config: Config) -> int:
    """Number of processes that train clients here."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = config.workers or max(1, (cores or 1) // config.threads)
    return min(count, config.active) if config.sampling == "uniform" else count


AMP_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def peak_mib() -> float:
    """The most memory this process has held, in MiB."""
    status = Path("/proc/self/status")
    if status.is_file():
        # getrusage counts what the parent held when it started this process
        found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text(encoding="utf-8"))
        if found:
            return int(found[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def device_of(config: Config) -> torch.device:
    """The configured device, the first of several, once it is known to work."""
    try:
        device = torch.device(config.devices[0])
        torch.zeros(1, device=device).item()
        # the same seed must give the same bits on a GPU too, and float32 means float32
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {config.device!r} cannot be used: {reason}") from error
    return device


_AMP_PROBE = """
import torch
layer = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3), torch.nn.Flatten(), torch.nn.Linear(64, 8))
with torch.autocast("cpu", torch.{dtype}):
    loss = layer(torch.randn(32, 16, 4, 4)).float().sum()
loss.backward()
"""


@functools.cache
def _amp_failure(dtype: str) -> str:
    """The reason why mixed precision crashes on this CPU; empty if it works."""
    probe = subprocess.run(
        [sys.executable, "-c", _AMP_PROBE.format(dtype=dtype)], capture_output=True, check=False
    )
    if not probe.returncode:
        return ""
    ending = (probe.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
    return ending or f"it ends with signal {-probe.returncode}"


def check_amp(config: Config) -> None:
    """Try mixed precision in a process of its own: some CPUs announce what they cannot run."""
    if config.amp == "off" or torch.device(config.devices[0]).type != "cpu":
        return
    reason = _amp_failure(str(AMP_DTYPES[config.amp]).removeprefix("torch."))
    if reason:
        raise ConfigError(
            f"amp {config.amp!r} does not work on this CPU ({reason}); use amp 'off', or try the "
            "environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE"
        )
