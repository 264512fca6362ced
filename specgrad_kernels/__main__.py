"""``python -m specgrad_kernels``: what runs here, what does not, and how to change that."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
from collections import Counter

import torch

import specgrad_kernels
from specgrad_kernels import backends
from specgrad_kernels.backends import built, cpp


def machine_report() -> str:
    """Versions, CPU features, threads and backends, one fact a line."""
    lines = [
        f"specgrad {specgrad_kernels.__version__} in {built.PACKAGE.parent}",
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"threads {torch.get_num_threads()}",
    ]
    if cpp.INSTRUCTION_SET is not None:
        lines.append(f"CPU instructions used: {cpp.INSTRUCTION_SET} of {cpp.RUNNABLE}")
    lines.append("backends, the preferred one first:")
    for name, reason in backends.report().items():
        lines.append(f"  {name:8} {'available' if reason is None else 'not available: ' + reason}")
    lines += [f"GPU kernels that passed their self-check: {line}" for line in _self_checks()]
    return "\n".join(lines)


def _self_checks() -> list[str]:
    """Devices on which GPU kernels passed, with their number."""
    if importlib.util.find_spec("triton") is None:
        return []
    from specgrad_kernels.backends.triton import self_check

    names = ("device", "driver", "triton", "specgrad")
    devices = Counter(
        ", ".join(f"{name} {note.get(name, '?')}" for name in names) for note in self_check.passed()
    )
    return [f"{count} on {device}" for device, count in sorted(devices.items())]


def main(arguments: list[str] | None = None) -> int:
    """Print the report, or compile GPU kernels ahead of time."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["compile"]:
        from specgrad_kernels.backends.triton import precompile

        return precompile.main(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m specgrad_kernels",
        description="Show which filter backends run on this machine, why the others do not, "
        "and the command that would enable them.",
        epilog="python -m specgrad_kernels compile --help: compile GPU kernels ahead of time",
    )
    parser.parse_args(arguments)
    print(machine_report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
