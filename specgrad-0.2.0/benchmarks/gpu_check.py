"""Everything a first hour with a GPU should tell: ``python -m specgrad_kernels gpu``.

Runs the checks on the device, a cold first call, the benchmark of the filter, and a round of the
trainer with eager steps, with CUDA graphs, and with graphs on four streams. Each figure stands
beside our estimate, which no GPU has calibrated. Writes ``gpu_check.json`` and ``gpu_check.md``.
A part that fails is in both of them, with its error, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import bench_gpu, machine

Figures = dict[str, Any]
# figure, unit, our estimate; for an A100 where a time depends on the device
ESTIMATES = {
    "checks that failed": ("", "0"),
    "cold first call, ResNet-20": ("s", "5 with two cores"),
    "cold first call, ResNet-18": ("s", "8 with two cores"),
    "launches of a filter call, ResNet-20": ("", "3"),
    "filter call on the device, ResNet-20": ("us", "20"),
    "filter call on the device, ResNet-18": ("us", "149"),
    "round of 500 steps, eager": ("s", "4 to 7"),
    "round of 500 steps, graphs": ("s", "1.2 to 1.5"),
    "round of 500 steps, graphs on four streams": ("s", "0.8 to 1.0"),
}
WAYS = {
    "eager": {"graphs": False},
    "graphs": {},
    "graphs on four streams": {"workers": 4},
}
FIRST_CALL = """
import sys, time, torch
from specgrad_kernels import filter_grads_
from tests.triton.triton_tools.lists import MODELS
grads = [torch.randn(length, device="cuda") for length in MODELS[sys.argv[1]]]
torch.cuda.synchronize()
begun = time.perf_counter()
filter_grads_(grads, backend="triton")
torch.cuda.synchronize()
print(time.perf_counter() - begun)
"""


def run(command: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of this Python in the source tree, with its output."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=machine.ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def checks() -> Figures:
    """Compare the filter with the float64 reference on the device."""
    done = run(["-m", "pytest", "-q", "tests/gpu"])
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode and not failed:
        raise RuntimeError(f"pytest tests/gpu ended with {done.returncode}: {done.stderr[-500:]}")
    return {"checks that failed": len(failed), "failures": failed, "checks": lines[-1:]}


def first_calls() -> Figures:
    """Seconds of the first call, self-check included, with empty caches."""
    found = {}
    for name, title in (("resnet20", "ResNet-20"), ("resnet18", "ResNet-18")):
        with tempfile.TemporaryDirectory() as folder:
            done = run(["-c", FIRST_CALL, name], TRITON_CACHE_DIR=folder, XDG_CACHE_HOME=folder)
        if done.returncode:
            raise RuntimeError(done.stderr[-500:])
        found[f"cold first call, {title}"] = float(done.stdout.split()[-1])
    return found


def filter_calls(output: Path) -> Figures:
    """The benchmark of the filter, whose own file is ``gpu.json``."""
    bench_gpu.main(["--output", str(output)])
    rows = json.loads((output / "gpu.json").read_text(encoding="utf-8"))["rows"]
    ours = {row["model"]: row for row in rows if (row["way"], row["method"]) == ("triton", "fft")}
    middle = bench_gpu.QUANTILES.index(0.5)
    return {
        "launches of a filter call, ResNet-20": ours["resnet20"]["launches"],
        "filter call on the device, ResNet-20": ours["resnet20"]["device_us"][middle],
        "filter call on the device, ResNet-18": ours["resnet18"]["device_us"][middle],
    }


def rounds(device: str, samples: int = 5000, **settings: Any) -> Figures:
    """Seconds of a round, the median after the first, and how its steps were taken.

    Ten clients, five epochs, ResNet-20, batches of 50, on noise of the shape of CIFAR-10.
    """
    from specgrad_fl import training
    from specgrad_fl.config import Config

    found: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "noise.npz"
        draws = np.random.default_rng(0)
        pixels = draws.integers(0, 256, (samples, 32, 32, 3), dtype=np.uint8)
        labels = np.arange(samples) % 10
        arrays = {"x_train": pixels, "y_train": labels, "x_test": pixels, "y_test": labels}
        np.savez(data, **arrays)
        base = Config(
            dataset=f"npz:{data}",
            data_options={"augment_pad": 4, "flip": True},
            model="resnet20",
            filter="fft",
            partition="iid",
            clients=10,
            rounds=4,
            epochs=5,
            device=device,
        )
        for way, changes in WAYS.items():
            made = training.train(base.replace(**{**changes, **settings}), Path(folder) / way)
            records = made.records()
            times = [record["seconds"]["train"] for record in records[1:]]
            found[f"round of 500 steps, {way}"] = statistics.median(times)
            found[f"steps, {way}"] = records[-1]["steps"]
    return found


def attempt(name: str, part: Callable[[], Figures]) -> Figures:
    """The figures of a part, or its error."""
    try:
        return part()
    except Exception as error:
        return {f"error in {name}": f"{error}", f"trace of {name}": traceback.format_exc()}


def page(found: Figures) -> str:
    """Figures beside estimates, and everything that failed, as Markdown."""
    lines = [
        f"# {found['gpu']['name']}: measured, beside what was estimated without a GPU",
        "",
        "| figure | measured | estimate (A100) | unit |",
        "|---|---|---|---|",
    ]
    for figure, (unit, estimate) in ESTIMATES.items():
        value = found.get(figure, "not measured")
        shown = f"{value:.3g}" if isinstance(value, float) else value
        lines.append(f"| {figure} | {shown} | {estimate} | {unit} |")
    lines += ["", *(f"- {way}: {found.get(f'steps, {way}', 'not measured')}" for way in WAYS)]
    lines += [f"- {line}" for line in found.get("failures", ())]
    lines += [f"- {name}: {text}" for name, text in found.items() if name.startswith("error in ")]
    return "\n".join([*lines, "", "```", found["report"], "```", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure everything; 2 where there is no GPU, 1 if a part failed."""
    parser = argparse.ArgumentParser(description="Check the filter and the trainer on a GPU.")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"))
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("The check needs a GPU and a CUDA or ROCm build of PyTorch.", file=sys.stderr)
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    report = run(["-m", "specgrad_kernels"])
    found: Figures = {"gpu": bench_gpu.gpu_properties(), **machine.describe()}
    found["report"] = report.stdout + report.stderr
    parts = {
        "checks": checks,
        "first calls": first_calls,
        "filter calls": lambda: filter_calls(options.output),
        "rounds": lambda: rounds("cuda"),
    }
    for name, part in parts.items():
        found |= attempt(name, part)
        bench_gpu.write(options.output / "gpu_check.json", found)
        (options.output / "gpu_check.md").write_text(page(found), encoding="utf-8")
    print(page(found))
    failed = found.get("checks that failed") or any(n.startswith("error in ") for n in found)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
