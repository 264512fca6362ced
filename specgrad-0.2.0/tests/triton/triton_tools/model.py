"""An estimate, not a measurement: the time of a call on a GPU, from what its programs were
counted to do.

``python triton_tools/model.py TABLE.csv`` prints the table of ``docs/gpu.md``. No GPU has
calibrated it: it is for comparing designs. A launch takes the longest of three times: its
slowest program alone, the work of all programs spread over the multiprocessors, and the bytes
that have to come from memory.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from specgrad_kernels.backends.triton import fields, schedule
from specgrad_kernels.backends.triton.targets import FAST_AT_DOUBLE
from triton_tools.lists import MODELS

# Assumptions, in cycles: a first access to memory, one that the second-level cache answers, and
# the share of cycles in which a scheduler with work issues an instruction.
MEMORY = 600
CACHE = 300
ISSUED = 0.6
USABLE_BANDWIDTH = 0.85
LAUNCH_SECONDS = 2.5e-6
FOREACH_SECONDS = 4e-6
CACHE_BYTES_A_CYCLE = 64
REGISTERS = 65536
WARPS = 64
SCHEDULERS = 4


@dataclass(frozen=True)
class Gpu:
    """Published figures, and cycles for which a float32 or float64 instruction keeps a scheduler's
    unit."""

    name: str
    architecture: str
    multiprocessors: int
    clock: float
    bandwidth: float
    float_cycles: int
    double_cycles: int

    def arithmetic(self, instructions: float, doubles: float) -> float:
        """Cycles of so many instructions, some of them in float64."""
        return (instructions - doubles) * self.float_cycles + doubles * self.double_cycles


GPUS = (
    Gpu("A40", "sm_86", 84, 1.74e9, 696e9, 1, 64),
    Gpu("A100 40 GB", "sm_80", 108, 1.41e9, 1555e9, 2, 4),
    Gpu("H100 SXM", "sm_90", 132, 1.755e9, 3350e9, 1, 2),
)

Figures = dict[str, float]


@dataclass(frozen=True)
class Work:
    """Demands of one program on its multiprocessor."""

    warps: float
    instructions: float
    arithmetic: float
    doubles: float
    wavefronts: float
    bytes: float
    waits: float
    beside: float

    def busy(self, gpu: Gpu) -> float:
        """Cycles for which it keeps the multiprocessor from others."""
        issue = self.warps * self.instructions / SCHEDULERS / ISSUED
        floats = self.warps * gpu.arithmetic(self.arithmetic, self.doubles) / SCHEDULERS
        return max(issue, floats, self.wavefronts, self.bytes / CACHE_BYTES_A_CYCLE)

    def alone(self, gpu: Gpu) -> float:
        """Cycles from its start to its end with nobody beside it."""
        each = ceil(self.warps / SCHEDULERS)
        extra = gpu.arithmetic(self.arithmetic, self.doubles) - self.arithmetic
        issue = each * (self.instructions + extra) / ISSUED
        return self.waits + max(issue, self.wavefronts)


class Counted:
    """The rows of ``gpu_counts.csv`` for a GPU's kernels, by kernel and case."""

    def __init__(self, path: Path, gpu: Gpu) -> None:
        self._figures: dict[tuple[str, str], Figures] = {}
        # counted are an A100's kernels, and an A40's where they differ
        own = "" if gpu.architecture in FAST_AT_DOUBLE else f", {gpu.architecture}"
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["subject"] not in MODELS]
        for ending in ("", own):
            for row in rows:
                if row["case"].endswith(ending):
                    key = (row["subject"], row["case"].removesuffix(ending))
                    self._figures.setdefault(key, {})[row["figure"]] = float(row["value"])

    def _columns(self, kernel: str, few: str, many: str, columns: int) -> Figures:
        """The figures for other numbers of columns than the nine and eighteen counted."""
        nine, eighteen = self._figures[kernel, few], self._figures[kernel, many]
        return {
            name: value + (columns - 9) * (eighteen[name] - value) / 9
            for name, value in nine.items()
        }

    def figures(self, kernel: str, row: dict[str, int], inverse: bool) -> Figures:
        """Counted figures of a program with this row."""
        columns, log = row["COLUMNS"], row["LOG_ROWS"]
        if kernel == "spread":
            return self._figures["spread", "inside"]
        if kernel == "interpolate":
            return self._columns("interpolate", "9 columns", "18 columns", columns)
        if kernel == "second_factor":
            return self._figures["second_factor", "9 x 64 x 512" + (" back" if inverse else "")]
        if log == 0:
            counted = self._figures["filter_grid", "circulant of 54"]
            return {name: value * max(row["CELLS"] / 54, 0.2) for name, value in counted.items()}
        # Where lines are split, the columns were transformed before.
        loaded = 0 if row["LOG_MIDDLE"] else columns
        slope = self._columns("filter_grid", "9 x 64", "18 x 64", loaded)
        flat = self._figures["filter_grid", "9 x 64"]
        base = self._figures["filter_grid", f"9 x {max(1 << log, 32)}"]
        return {name: value + slope[name] - flat[name] for name, value in base.items()}

    def work(self, kernel: str, row: dict[str, int], inverse: bool) -> Work:
        """One program."""
        figures = self.figures(kernel, row, inverse)
        fixed = self._figures[_any_case(kernel)]
        warps, registers = fixed["warps"], fixed["registers"]
        if kernel == "filter_grid" and row["LOG_ROWS"] == 11:
            warps = 8.0
        beside = min(REGISTERS // (registers * 32 * warps), WARPS // warps)
        sectors = figures["sectors"]
        return Work(
            warps,
            figures["instructions a warp"],
            figures["of these arithmetic"],
            figures["of these float64"],
            figures["shared wavefronts"] + sectors / 4,
            32 * sectors,
            _waits(kernel, row),
            beside,
        )


def _any_case(kernel: str) -> tuple[str, str]:
    cases = {"spread": "inside", "interpolate": "9 columns", "second_factor": "9 x 64 x 512"}
    return kernel, cases.get(kernel, "9 x 512")


def _waits(kernel: str, row: dict[str, int]) -> float:
    """Cycles for which a program waits for memory with nothing else to do."""
    columns = row["COLUMNS"]
    if kernel == "spread":
        return 3 * MEMORY
    threes = 1 if columns == 9 else ceil(columns / 3)
    if kernel == "interpolate":
        return MEMORY + max(2 * MEMORY, threes * CACHE) + CACHE
    steps = row["CELLS"] / 8 if row["LOG_ROWS"] == 0 else columns / 3
    exchanges = 150 * max(0, 2 * ((row["LOG_ROWS"] - 1) // 3))
    return MEMORY + steps * CACHE + exchanges + CACHE


def seconds(model: str, plan: schedule.Schedule, gpu: Gpu, path: Path) -> list[tuple[str, float]]:
    """Estimated time of every launch, from the table of counts."""
    counted = Counted(path, gpu)
    samples = 4 * sum(MODELS[model])
    from_memory = {"spread": 1.0 * samples, "interpolate": 2.0 * samples}
    parts = []
    for launch in plan.launches:
        rows = [dict(zip(fields.NAMES, row, strict=True)) for row in launch.programs.tolist()]
        inverse = launch.sizes.get("INVERSE", False)
        work = [counted.work(launch.kernel, row, inverse) for row in rows]
        longest = max(program.alone(gpu) for program in work)
        shared = sum(program.busy(gpu) + program.waits / program.beside for program in work)
        memory = from_memory.get(launch.kernel, 0.0) / gpu.bandwidth / USABLE_BANDWIDTH
        cycles = max(longest, shared / gpu.multiprocessors)
        parts.append((launch.kernel, max(cycles / gpu.clock, memory) + LAUNCH_SECONDS))
    return parts


def foreach_seconds(model: str, gpu: Gpu) -> float:
    """Estimated time of ``torch._foreach_mul_``: one read, one write."""
    return 8 * sum(MODELS[model]) / gpu.bandwidth / USABLE_BANDWIDTH + FOREACH_SECONDS


def main(path: Path) -> None:
    """Print the estimates as Markdown."""
    from triton_tools.counts import plan_of

    print("| model | " + " | ".join(gpu.name for gpu in GPUS) + " |")
    print("|" + "---|" * (1 + len(GPUS)))
    for model, lengths in MODELS.items():
        plan = plan_of(*lengths)
        cells = []
        for gpu in GPUS:
            whole = sum(part for _, part in seconds(model, plan, gpu, path))
            floor = foreach_seconds(model, gpu)
            cells.append(f"{1e6 * whole:.0f} us, {whole / floor:.1f} floors")
        print(f"| {model} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
