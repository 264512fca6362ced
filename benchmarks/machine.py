"""Where a figure was measured: without this it means little."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from specgrad_fl import machine

from specgrad_kernels import available_backends
from specgrad_kernels.backends import cpp

ROOT = Path(__file__).resolve().parent.parent


def cpu_model() -> str:
    """The processor's name."""
    return str(machine.report()["cpu"])


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float:
    """Processes that wanted a core during the last minute, on average."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def commit() -> str | None:
    """The commit of the source tree, marked where files differ from it; ``None`` without git."""
    name = _git("rev-parse", "--short=12", "HEAD")
    return f"{name} with changes" if name and _git("status", "--porcelain") else name


def describe() -> dict[str, Any]:
    """Machine, versions and commit."""
    return {
        "machine": {
            "cpu": cpu_model(),
            "instruction_set": cpp.INSTRUCTION_SET or "none (no library)",
            "cores": cores(),
            "load_at_start": round(load(), 2),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "specgrad": metadata.version("specgrad"),
            "backends": available_backends(),
        },
        "commit": commit(),
    }


def measure_parts(
    kind: str, parts: Sequence[str], measure: Callable[[str], Any], asked: Namespace,
    table: Callable[[dict[str, Any]], str], plot: Callable[[dict[str, Any], Path], None],
    versions: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Measure each part, print the table, draw the plot; other parts in the JSON file are kept."""
    stored = asked.json and asked.json.is_file()
    result: dict[str, Any] = json.loads(asked.json.read_text()) if stored else {kind: {}}
    facts = describe()
    facts["versions"] |= versions or {}
    for part in parts:
        result[kind][part] = measure(part)
        result |= facts
        if asked.json:
            asked.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    if asked.plot:
        plot(result, asked.plot)
