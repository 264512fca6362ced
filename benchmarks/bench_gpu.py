"""Times the filter on a GPU: ``python -m benchmarks.bench_gpu --output runs/gpu``.

Every layer list is filtered by the Triton backend, by the stacked PyTorch backend, by one
``torch.fft`` per layer as in the paper, and, as the floor, by ``torch._foreach_mul_``. Written:
``gpu.csv`` (quantiles in microseconds, launches, peak memory, with GPU, driver, versions and
commit on every row), ``gpu_step.csv`` (share of a ResNet-20 training step) and plots.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import specgrad_kernels
from specgrad_kernels import FilterSpec, filter_grads_
from specgrad_kernels.reference import suppress_low
from tests.triton.triton_tools.lists import MODELS

QUANTILES = (0.2, 0.5, 0.8)
METHODS = ("fft", "lap", "gaussian")


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    import triton

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split("\n")[0]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver or "unknown",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "specgrad": specgrad_kernels.__version__,
        "commit": commit or "unknown",
    }


def per_layer_loop(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """The paper's way: a transform and its inverse for every layer."""
    for index, grad in enumerate(grads):
        grad.copy_(suppress_low(grad, spec.cutoff(grad.numel(), index)))


def candidates(method: str) -> dict[str, Callable[[list[Tensor]], None]]:
    """The ways to filter a list in place."""
    spec = FilterSpec(method=method)
    ways: dict[str, Callable[[list[Tensor]], None]] = {
        "triton": lambda grads: filter_grads_(grads, method=method, backend="triton"),
        "torch stacked": lambda grads: filter_grads_(grads, method=method, backend="torch"),
        "foreach_mul": lambda grads: torch._foreach_mul_(grads, 1.0),
    }
    if method == "fft":
        ways["torch per layer"] = lambda grads: per_layer_loop(grads, spec)
    return ways


def count_launches(call: Callable[[], None]) -> int:
    """Kernels of one call, memory copies not counted."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type.name == "CUDA"]
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in kernels)


def peak_extra_bytes(call: Callable[[], None]) -> int:
    """Memory that one call adds at its peak."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(lengths: list[int], method: str) -> list[dict[str, object]]:
    """One row per way."""
    from triton.testing import do_bench

    rows = []
    for name, way in candidates(method).items():
        grads = [torch.randn(length, device="cuda") for length in lengths]

        def call(way: Callable = way, grads: list[Tensor] = grads) -> None:
            way(grads)

        call()
        low, middle, high = (1e3 * t for t in do_bench(call, quantiles=list(QUANTILES)))
        rows.append(
            {
                "method": method,
                "way": name,
                "p20_us": f"{low:.2f}",
                "p50_us": f"{middle:.2f}",
                "p80_us": f"{high:.2f}",
                "launches": count_launches(call),
                "peak_extra_bytes": peak_extra_bytes(call),
            }
        )
    return rows


class _Block(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(2, width), nn.GroupNorm(2, width)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != width:
            self.shortcut = nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


def resnet20() -> nn.Sequential:
    """A CIFAR ResNet-20 with group norm."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(2, 16)]
    channels = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            layers.append(_Block(channels, width, stride if block == 0 else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def measure_step(batch: int = 50) -> list[dict[str, object]]:
    """A training step with and without the filter."""
    from triton.testing import do_bench

    model = resnet20().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(batch, 3, 32, 32, device="cuda")
    labels = torch.randint(10, (batch,), device="cuda")
    filtered = [p for p in model.parameters() if p.dim() == 4 and p.shape[-1] == 3]
    rows = []
    for backend in (None, "triton", "torch"):

        def step(backend: str | None = backend) -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            if backend:
                filter_grads_([p.grad for p in filtered], backend=backend)
            optimizer.step()

        step()
        low, middle, high = (1e3 * t for t in do_bench(step, quantiles=list(QUANTILES)))
        rows.append(
            {
                "filter": backend or "none",
                "p20_us": f"{low:.1f}",
                "p50_us": f"{middle:.1f}",
                "p80_us": f"{high:.1f}",
            }
        )
    return rows


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """A CSV file, complete or not at all."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(temporary, path)


def plot(path: Path, rows: list[dict[str, object]]) -> None:
    """Median times per model and way, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(row["model"] for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for offset, way in enumerate(ways):
        chosen = [row for row in rows if row["way"] == way]
        places = [models.index(row["model"]) + 0.8 * offset / len(ways) for row in chosen]
        times = [float(str(row["p50_us"])) for row in chosen]
        axes.bar(places, times, width=0.8 / len(ways), label=way, align="edge")
    axes.set_xticks([place + 0.4 for place in range(len(models))], models)
    axes.set_yscale("log")
    axes.set_ylabel("microseconds per call")
    axes.set_title(str(rows[0]["gpu"]))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure everything; a sentence and exit code 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description="Time the gradient filter on a GPU.")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("bench_gpu needs a GPU and a CUDA or ROCm build of PyTorch.", file=sys.stderr)
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    known = machine()
    rows = [
        {"model": model, **row, **known}
        for model in options.models
        for method in METHODS
        for row in measure(MODELS[model], method)
    ]
    write(options.output / "gpu.csv", rows)
    write(options.output / "gpu_step.csv", [{**row, **known} for row in measure_step()])
    for method in METHODS:
        chosen = [row for row in rows if row["method"] == method]
        plot(options.output / f"gpu_{method}.png", chosen)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
