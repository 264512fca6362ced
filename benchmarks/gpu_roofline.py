"""An estimate, not a measurement: bytes, operations and launches against published peaks.

``python -m benchmarks.gpu_roofline`` prints the tables of ``docs/gpu.md``. A launch takes the
longer of its memory time and its arithmetic time; every launch costs a fixed latency on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch

from specgrad_kernels.backends.triton import fields, schedule
from specgrad_kernels.backends.triton.report import plain_signal
from specgrad_kernels.spec import FilterSpec
from tests.triton.triton_tools.lists import MODELS

LAUNCH_SECONDS = 4e-6
"""Assumed: issue of a kernel and the first wait for memory in it."""
PAPER_STEP_SECONDS = 11e-3
TF32_PRODUCTS = 3
"""Tensor-core products for one product of float32 accuracy."""


@dataclass(frozen=True)
class Gpu:
    """Published peaks: bytes per second, and dense TF32 operations per second."""

    name: str
    bandwidth: float
    tensor: float


GPUS = (
    Gpu("A40", 696e9, 74.8e12),
    Gpu("A100 40 GB", 1555e9, 156e12),
    Gpu("H100 SXM", 3350e9, 494.7e12),
)


class Work:
    """Bytes and operations of every launch of a plan, from its tables."""

    def __init__(self, lengths: list[int], spec: FilterSpec) -> None:
        signals = [plain_signal(d, index) for index, d in enumerate(lengths)]
        self.plan = schedule.build(signals, spec, double=False)
        rows = self.plan.table.tolist()
        self.signals = [dict(zip(fields.NAMES, row, strict=True)) for row in rows]
        self.samples = 4 * sum(lengths)

    def launches(self) -> list[tuple[str, float, float]]:
        """Name, bytes and operations per launch."""
        return [
            (launch.kernel, getattr(self, f"_{launch.kernel}_bytes")(), self._operations(launch))
            for launch in self.plan.launches
        ]

    def _operations(self, launch: schedule.Launch) -> float:
        count = getattr(self, f"_{launch.kernel}", None)
        if count is None:
            return 0.0
        return float(sum(count(self.signals[row[0]], launch.sizes) for row in launch.programs))

    def _spread_columns_bytes(self) -> float:
        return self.samples + 4 * self.plan.workspace

    def _transform_middle_bytes(self) -> float:
        split = [signal for signal in self.signals if signal["MIDDLE"] > 1]
        return 2 * 4 * sum(s["COLUMNS"] * s["MIDDLE"] * s["ROWS"] for s in split)

    def _solve_rows_bytes(self) -> float:
        return 2 * 4 * self.plan.workspace

    def _subtract_columns_bytes(self) -> float:
        return 2 * self.samples + 4 * self.plan.workspace

    def _save_borders_bytes(self) -> float:
        return 2 * 4 * self.plan.borders

    def _subtract_smooth_bytes(self) -> float:
        return 2 * self.samples + 4 * self.plan.borders

    def _spread_columns(self, signal: dict[str, int], sizes: dict[str, int]) -> float:
        extent = (15 + signal["WIDTH"]) * signal["DECIMATION"]
        chunks = ceil(signal["COLUMNS"] / sizes["CHUNK"])
        spread = ceil(extent / sizes["DEPTH"]) * sizes["CHUNK"] * sizes["DEPTH"] * 16
        return 2 * chunks * (spread + sizes["COLUMNS"] * sizes["CHUNK"] * 16)

    def _transform_middle(self, signal: dict[str, int], sizes: dict[str, int]) -> float:
        steps = ceil(signal["MIDDLE"] / sizes["DEPTH"])
        return 2 * 4 * steps * sizes["MIDDLE"] * sizes["DEPTH"] * 16

    def _solve_rows(self, signal: dict[str, int], sizes: dict[str, int]) -> float:
        blocks = ceil(signal["BINS"] / sizes["BINS"])
        forward = ceil(signal["ROWS"] / sizes["DEPTH"]) * sizes["DEPTH"]
        return 2 * 4 * blocks * 16 * sizes["BINS"] * (forward + sizes["ROWS"])

    def _subtract_columns(self, signal: dict[str, int], sizes: dict[str, int]) -> float:
        chunks = ceil(signal["COLUMNS"] / sizes["CHUNK"])
        spans = ceil(16 * signal["DECIMATION"] / sizes["SPAN"])
        return 2 * sizes["COLUMNS"] * 32 * (chunks * sizes["CHUNK"] + spans * sizes["SPAN"])

    def _subtract_smooth(self, signal: dict[str, int], sizes: dict[str, int]) -> float:
        steps = ceil((sizes["LINE"] + 2 * signal["RADIUS"]) / sizes["DEPTH"])
        return 2 * steps * sizes["DEPTH"] * sizes["LINES"] * sizes["LINE"]


def seconds(work: Work, gpu: Gpu) -> float:
    """Estimated time of one call."""
    return sum(
        LAUNCH_SECONDS + max(size / gpu.bandwidth, TF32_PRODUCTS * operations / gpu.tensor)
        for _, size, operations in work.launches()
    )


def main() -> None:
    """Print the estimates as Markdown."""
    print("| model | method | launches | MB | GFLOP | " + " | ".join(g.name for g in GPUS) + " |")
    print("|" + "---|" * (5 + len(GPUS)))
    for name, lengths in MODELS.items():
        for method in ("fft", "lap", "gaussian"):
            work = Work(lengths, FilterSpec(method=method))
            steps = work.launches()
            megabytes = sum(size for _, size, _ in steps) / 1e6
            operations = sum(count for _, _, count in steps) / 1e9
            times = " | ".join(f"{1e6 * seconds(work, gpu):.0f} us" for gpu in GPUS)
            cells = (name, method, len(steps), f"{megabytes:.2f}", f"{operations:.3f}", times)
            print("| " + " | ".join(map(str, cells)) + " |")
    work = Work(MODELS["resnet20"], FilterSpec())
    shares = ", ".join(
        f"{gpu.name} {100 * seconds(work, gpu) / PAPER_STEP_SECONDS:.2f} %" for gpu in GPUS
    )
    print(f"\nResNet-20, fft, of an {1e3 * PAPER_STEP_SECONDS:.0f} ms step: {shares}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
