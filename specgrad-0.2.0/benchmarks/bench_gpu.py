"""Times the filter on a GPU: ``python -m benchmarks.bench_gpu --output runs/gpu``.

Every layer list is filtered by the Triton backend, by the stacked PyTorch backend, by one
``torch.fft`` per layer as in the paper, and, as the floor, by ``torch._foreach_mul_``. Each way
is timed on the device, as the replay of a CUDA graph (the device without the host), by the wall
(the host too), and by the wall with gradients that are elsewhere at every call.

``gpu.json`` holds all of it with the GPU's properties, versions, commit, and the programs of every
launch: what is needed to set the figures beside the counted model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from specgrad_fl.models import resnet20
from torch import Tensor, nn

from benchmarks import machine
from specgrad_kernels import FilterSpec, filter_grads_
from specgrad_kernels.reference import suppress_low
from tests.triton.triton_tools.lists import MODELS

QUANTILES = (0.2, 0.5, 0.8)
METHODS = ("fft", "lap", "gaussian")
CALLS = 200

Way = Callable[[list[Tensor]], None]
Call = Callable[[], object]


class Clock(Protocol):
    """Times calls on one device, in microseconds."""

    device: torch.device

    def on_device(self, call: Call) -> list[float]:
        """Quantiles between two events of the device, its cache emptied before."""

    def replayed(self, call: Call) -> list[float] | str:
        """Likewise for a graph of the call, or why there is none."""

    def by_the_wall(self, call: Call) -> float:
        """Mean of many calls in a row, host included."""

    def launches(self, call: Call) -> int:
        """Kernels of one call, memory copies not counted."""

    def extra_bytes(self, call: Call) -> int:
        """Memory that one call adds at its peak."""


class Gpu:
    """The clock of the current GPU."""

    device = torch.device("cuda")

    def on_device(self, call: Call) -> list[float]:
        from triton.testing import do_bench

        return [1e3 * milliseconds for milliseconds in do_bench(call, quantiles=list(QUANTILES))]

    def replayed(self, call: Call) -> list[float] | str:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except RuntimeError as error:
            torch.cuda.synchronize()
            return str(error).splitlines()[0]
        return self.on_device(graph.replay)

    def by_the_wall(self, call: Call) -> float:
        call()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        return 1e6 * (time.perf_counter() - begun) / CALLS

    def launches(self, call: Call) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        kernels = [event for event in profile.events() if event.device_type.name == "CUDA"]
        return sum(not event.name.startswith(("Memcpy", "Memset")) for event in kernels)

    def extra_bytes(self, call: Call) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def driver_version() -> str:
    """Version of NVIDIA's driver or of ROCm; ``unknown`` where no tool says."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.split("\n")[0] or "unknown"


def gpu_properties() -> dict[str, Any]:
    """Name of a GPU in the counted model."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    names = (
        "name",
        "major",
        "minor",
        "gcnArchName",
        "multi_processor_count",
        "total_memory",
        "L2_cache_size",
        "clock_rate",
        "memory_clock_rate",
        "memory_bus_width",
    )
    known = {name: getattr(properties, name) for name in names if hasattr(properties, name)}
    return known | {"driver": driver_version()}


def per_layer_loop(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """The paper's way: a transform and its inverse for every layer."""
    for index, grad in enumerate(grads):
        grad.copy_(suppress_low(grad, spec.cutoff(grad.numel(), index)))


def ways_of(method: str) -> dict[str, Way]:
    """The ways to filter a list in place."""
    spec = FilterSpec(method=method)
    ways: dict[str, Way] = {
        "triton": lambda grads: filter_grads_(grads, method=method, backend="triton"),
        "torch stacked": lambda grads: filter_grads_(grads, method=method, backend="torch"),
        "foreach_mul": lambda grads: torch._foreach_mul_(grads, 1.0),
    }
    if method == "fft":
        ways["torch per layer"] = lambda grads: per_layer_loop(grads, spec)
    return ways


def alternate(way: Way, lists: Sequence[list[Tensor]]) -> Call:
    """A call that finds its gradients elsewhere every time."""
    turn = 0

    def call() -> None:
        nonlocal turn
        turn = (turn + 1) % len(lists)
        way(lists[turn])

    return call


def measure(lengths: list[int], method: str, ways: dict[str, Way], clock: Clock) -> list[dict]:
    """One row for each way."""
    rows = []
    for name, way in ways.items():
        lists = [[torch.randn(d, device=clock.device) for d in lengths] for _ in range(2)]

        def call(way: Way = way, grads: list[Tensor] = lists[0]) -> None:
            way(grads)

        call()
        rows.append(
            {
                "method": method,
                "way": name,
                "tensors": len(lengths),
                "gradient_bytes": 4 * sum(lengths),
                "device_us": clock.on_device(call),
                "graph_us": clock.replayed(call),
                "wall_us": clock.by_the_wall(call),
                "moved_wall_us": clock.by_the_wall(alternate(way, lists)),
                "launches": clock.launches(call),
                "peak_extra_bytes": clock.extra_bytes(call),
            }
        )
    return rows


def programs_of(lengths: list[int], method: str) -> list[dict[str, Any]]:
    """Kernel, programs and sizes of every launch, as the model counts them."""
    from specgrad_kernels.backends.triton import schedule
    from specgrad_kernels.backends.triton.signals import contiguous_signal

    signals = [contiguous_signal(d, index) for index, d in enumerate(lengths)]
    plan = schedule.build(signals, FilterSpec(method=method), False)
    return [
        {"kernel": step.kernel, "programs": len(step.programs), "sizes": step.sizes}
        for step in plan.launches
    ]


def measure_step(clock: Clock, batch: int = 50) -> list[dict[str, Any]]:
    """A ResNet-20 training step with and without the filter."""
    model = resnet20(num_classes=10).to(clock.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(batch, 3, 32, 32, device=clock.device)
    labels = torch.randint(10, (batch,), device=clock.device)
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
        times = {"device_us": clock.on_device(step), "wall_us": clock.by_the_wall(step)}
        rows.append({"filter": backend or "none", **times})
    return rows


def write(path: Path, content: dict[str, Any]) -> None:
    """A JSON file, complete or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def plot(path: Path, title: str, rows: list[dict]) -> None:
    """Median device times per model and way, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(row["model"] for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for offset, way in enumerate(ways):
        chosen = [row for row in rows if row["way"] == way]
        places = [models.index(row["model"]) + 0.8 * offset / len(ways) for row in chosen]
        times = [row["device_us"][QUANTILES.index(0.5)] for row in chosen]
        axes.bar(places, times, width=0.8 / len(ways), label=way, align="edge")
    axes.set_xticks([place + 0.4 for place in range(len(models))], models)
    axes.set_yscale("log")
    axes.set_ylabel("microseconds per call, on the device")
    axes.set_title(title)
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
    import triton

    options.output.mkdir(parents=True, exist_ok=True)
    clock = Gpu()
    rows = [
        {"model": model, **row}
        for model in options.models
        for method in METHODS
        for row in measure(MODELS[model], method, ways_of(method), clock)
    ]
    content = {
        "gpu": gpu_properties(),
        "triton": triton.__version__,
        **machine.describe(),
        "quantiles": QUANTILES,
        "ratio": 0.05,
        "dtype": "float32",
        "rows": rows,
        "step": measure_step(clock),
        "programs": {
            model: {method: programs_of(MODELS[model], method) for method in METHODS}
            for model in options.models
        },
    }
    write(options.output / "gpu.json", content)
    for method in METHODS:
        chosen = [row for row in rows if row["method"] == method]
        plot(options.output / f"gpu_{method}.png", content["gpu"]["name"], chosen)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
