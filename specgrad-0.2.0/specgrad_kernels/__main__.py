"""``python -m specgrad_kernels``: what runs here, what does not, and how to change that."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path

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


def check_gpu(arguments: list[str]) -> int:
    """Run every check and measurement on a GPU, which live in the source tree."""
    tree = Path(specgrad_kernels.__file__).parents[1]
    if not torch.cuda.is_available():
        print("There is no GPU here that this build of PyTorch can use.", file=sys.stderr)
        return 2
    if not (tree / "benchmarks" / "gpu_check.py").is_file():
        print(
            "The check needs the tests and benchmarks of the source tree: clone the repository, "
            "run `make all`, and call it there.",
            file=sys.stderr,
        )
        return 2
    output = ["--output", str(Path("runs/gpu").resolve()), *arguments]
    command = [sys.executable, "-m", "benchmarks.gpu_check", *output]
    return subprocess.run(command, cwd=tree, check=False).returncode


def main(arguments: list[str] | None = None) -> int:
    """Print the report, compile GPU kernels ahead of time, or check a GPU."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["compile"]:
        from specgrad_kernels.backends.triton import precompile

        return precompile.main(arguments[1:])
    if arguments[:1] == ["gpu"]:
        return check_gpu(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m specgrad_kernels",
        description="Show which filter backends run on this machine, why the others do not, "
        "and the command that would enable them.",
        epilog="python -m specgrad_kernels compile --help: compile GPU kernels ahead of time; "
        "python -m specgrad_kernels gpu: check and measure everything on a GPU",
    )
    parser.parse_args(arguments)
    print(machine_report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
