"""Counts what compiled kernels do: ``python triton_tools/counts.py TABLE.csv``.

One program of every kind is executed by the interpreter of PTX, and every instruction that one
of its warps issues is counted, with the shared memory's wavefronts and the bytes of each access
to a gradient. Moves into registers are left out: nearly all of them the assembler removes.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from specgrad_kernels.backends.triton import fields, schedule
from specgrad_kernels.backends.triton.signals import contiguous_signal
from specgrad_kernels.backends.triton.targets import KERNELS
from specgrad_kernels.spec import FilterSpec
from triton_tools import model
from triton_tools.barriers import CASES as BARRIER_CASES
from triton_tools.barriers import barriers, found_without
from triton_tools.compare import random_grads
from triton_tools.lists import MODELS
from triton_tools.offline import Variant, compile_variant, resources
from triton_tools.ptx.machine import Machine, Memory, PtxKernel, tensor_bytes
from triton_tools.ptx.parse import Instruction
from triton_tools.rounding import Rounded

TARGET = "sm_80"
COLUMNS = ("subject", "case", "figure", "value")
FLOATS = ("f32", "f64")
HOST_RUNS = 7

Rows = list[tuple[str, ...]]


@dataclass
class Counts:
    """Instructions of one program's warps, and the work of memory for it."""

    instructions: int = 0
    arithmetic: int = 0
    doubles: int = 0
    wavefronts: int = 0
    ideal: int = 0
    sectors: int = 0
    widths: Counter[int] = field(default_factory=Counter)


def wavefronts(threads: np.ndarray, places: np.ndarray, size: int) -> tuple[int, int]:
    """Passes through the 32 banks for one access, and how many its words would need at best."""
    needed = best = 0
    warps, lanes = threads // 32, threads % 32
    for warp in np.unique(warps):
        # A wide access goes through in as many parts as it has words.
        for part in range(max(1, size // 4)):
            chosen = (warps == warp) & (lanes // (32 // max(1, size // 4)) == part)
            if not chosen.any():
                continue
            words = (places[chosen][:, None] // 4 + np.arange(max(1, size // 4))).ravel()
            words = np.unique(words)
            needed += int(np.bincount(words % 32).max())
            best += -(-len(words) // 32)
    return needed, best


def _sectors(threads: np.ndarray, places: np.ndarray, size: int) -> int:
    """Pieces of 32 bytes that one access touches, summed over warps."""
    total = 0
    for warp in np.unique(threads // 32):
        first = places[threads // 32 == warp]
        total += len(np.unique((first[:, None] + np.arange(0, size, min(size, 4))) // 32))
    return total


class Accesses:
    """Told of every access of a program, it counts what memory has to do for it."""

    def __init__(self, counts: Counts, gradients: list[tuple[int, int]]) -> None:
        self.counts = counts
        self.gradients = gradients

    def touch(
        self, space: str, threads: np.ndarray, addresses: np.ndarray, data: np.ndarray | int
    ) -> None:
        """One access of some threads."""
        size = data if isinstance(data, int) else data.itemsize * data.shape[1]
        places = addresses.astype(np.int64)
        if space == "shared":
            needed, best = wavefronts(threads, places, size)
            self.counts.wavefronts += needed
            self.counts.ideal += best
            return
        self.counts.sectors += _sectors(threads, places, size)
        if any(((start <= places) & (places < end)).any() for start, end in self.gradients):
            self.counts.widths[8 * size] += 1

    def barrier(self) -> None:
        """Nothing to count."""


class CountingMachine(Machine):
    """One program whose instructions are counted, once for each warp that issues them."""

    counts: Counts

    def _step(self, instruction: Instruction) -> None:
        name = instruction.opcode[0]
        warps = len(np.unique(np.nonzero(self.mask)[0] // 32))
        if name != "mov" and instruction.opcode[:2] != ("ld", "param"):
            self.counts.instructions += warps
        if name in ("fma", "add", "sub", "mul") and instruction.opcode[-1] in FLOATS:
            self.counts.arithmetic += warps
            self.counts.doubles += warps * (instruction.opcode[-1] == "f64")
        super()._step(instruction)


@dataclass(frozen=True)
class Case:
    """One program of one kernel, for a gradient of ``length`` samples."""

    kernel: str
    length: int
    inverse: bool = False
    dtype: torch.dtype = torch.float32
    target: str = TARGET
    method: str = "fft"

    @property
    def variant(self) -> Variant:
        """The compiled variant."""
        return Variant.from_launch(self.launch(), self.dtype)

    @property
    def name(self) -> str:
        """As the table has it."""
        row = dict(zip(fields.NAMES, self.row(), strict=True))
        other = "" if self.dtype is torch.float32 else f", {self.variant.dtype_name}"
        other += "" if self.target == TARGET else f", {self.target}"
        if self.method != "fft":
            return f"{self.method}{other}"
        if self.kernel == "spread":
            return f"inside{other}"
        if self.kernel == "interpolate":
            return f"{row['COLUMNS']} columns{other}"
        if row["LOG_ROWS"] == 0:
            return f"circulant of {row['CELLS']}{other}"
        way = " back" if self.inverse else ""
        points = f" x {1 << row['LOG_MIDDLE']}" if row["LOG_MIDDLE"] else ""
        return f"{row['COLUMNS']}{points} x {1 << row['LOG_ROWS']}{way}{other}"

    def launch(self) -> schedule.Launch:
        """The launch that the program is of."""
        plan = plan_of(self.length, method=self.method)
        wanted = [launch for launch in plan.launches if launch.kernel == self.kernel]
        return wanted[1 if self.inverse else 0]

    @property
    def index(self) -> int:
        """A program in the middle of its launch, with whole tiles on both sides."""
        return len(self.launch().programs) // 2

    def row(self) -> list[int]:
        """The program's row."""
        return self.launch().programs[self.index].tolist()

    @property
    def elements(self) -> int:
        """Samples of one program of a kernel that writes its share of them, or of the grid."""
        sizes = self.launch().sizes
        if "TILE" in sizes:
            return int(sizes["TILE"])
        cells = 4 * sizes["ROWS"] - (sizes["WIDTH"] if self.kernel == "interpolate" else 0)
        return cells * sizes["HOP"]


_FINER = (
    Case("spread", 36864),
    Case("filter_grid", 432),
    Case("filter_grid", 2304),
    Case("filter_grid", 4608),
    Case("filter_grid", 9216),
    Case("filter_grid", 18432),
    Case("filter_grid", 36864),
    Case("filter_grid", 147456),
    Case("second_factor", 2359296),
    Case("second_factor", 2359296, inverse=True),
)
"""Kernels that compute in float64 on an A100, and in float32 on an A40."""
CASES = (
    *_FINER,
    *(replace(case, target="sm_86") for case in _FINER),
    Case("interpolate", 36864),
    Case("interpolate", 9216),
    Case("spread", 36864, dtype=torch.bfloat16),
    Case("interpolate", 36864, dtype=torch.bfloat16),
    Case("spread", 36864, dtype=torch.float16),
    Case("interpolate", 36864, dtype=torch.float16),
    Case("subtract_means", 576, method="centralize"),
    *(
        Case(kernel, 36864, method=method, dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
        for method in ("lap", "gaussian")
        for kernel in ("save_borders", "subtract_smooth")
    ),
)


ERROR_LENGTHS = (432, 864, 1728, 2304, 4608, 9216, 18432, 24576, 36864, 589824)


@cache
def plan_of(*lengths: int, method: str = "fft") -> schedule.Schedule:
    """The float32 schedule of contiguous layers."""
    signals = [contiguous_signal(length, index) for index, length in enumerate(lengths)]
    return schedule.build(signals, FilterSpec(method=method), double=False)


def count(case: Case) -> Counts:
    """Execute one program."""
    launch, plan = case.launch(), plan_of(case.length, method=case.method)
    compiled = compile_variant(case.variant, case.target)
    grads = random_grads([case.length], case.dtype)
    tensors: dict[str, Any] = {
        "addresses_ptr": torch.tensor([grad.data_ptr() for grad in grads]),
        "layouts_ptr": torch.from_numpy(plan.table).clone(),
        "programs_ptr": torch.from_numpy(launch.programs).clone(),
        "coefficients_ptr": torch.from_numpy(plan.coefficients).clone(),
        "workspace_ptr": torch.ones(plan.workspace),
        "borders_ptr": torch.ones(plan.borders, dtype=case.dtype),
    }
    names = KERNELS[launch.kernel].arg_names
    arguments = [tensors[name] for name in names if name in tensors]
    program = PtxKernel(compiled.asm["ptx"], compiled.metadata.shared)
    memory = Memory([tensor_bytes(tensor) for tensor in (*arguments, *grads)])
    places = [tensor.data_ptr() for tensor in arguments]
    counts = Counts()
    watch = Accesses(counts, [(grad.data_ptr(), grad.data_ptr() + grad.nbytes) for grad in grads])
    machine = CountingMachine(
        program.kernel, memory, program.shared_memory(), places, case.index, watch=watch
    )
    machine.counts = counts
    machine.run()
    return counts


def kernel_rows(case: Case) -> Rows:
    """The table's rows for one program."""
    counts, cost = count(case), resources(case.variant, case.target)
    figures: dict[str, Any] = {
        "warps": cost.warps,
        "registers": cost.registers,
        "spilled bytes": cost.spilled_bytes,
        "instructions a warp": round(counts.instructions / cost.warps),
        "of these arithmetic": round(counts.arithmetic / cost.warps),
        "of these float64": round(counts.doubles / cost.warps),
        "sectors": counts.sectors,
        "shared wavefronts": counts.wavefronts,
        "shared wavefronts over ideal": f"{counts.wavefronts / max(counts.ideal, 1):.2f}",
    }
    if counts.ideal == 0:
        figures["shared wavefronts over ideal"] = "1.00"
    if case.kernel in ("spread", "interpolate", "subtract_smooth"):
        share = 32 * counts.instructions / case.elements
        figures["thread instructions an element"] = f"{share:.1f}"
    if counts.widths:
        figures["narrowest gradient access in bits"] = min(counts.widths)
    return [(case.kernel, case.name, figure, str(value)) for figure, value in figures.items()]


def model_rows(name: str) -> Rows:
    """Figures of a model's schedule."""
    lengths = MODELS[name]
    plan = plan_of(*lengths)
    samples = sum(lengths)
    # The gradients are read twice and written once; scratch memory and tables stay in the cache.
    moved = 3 * samples + len(plan.coefficients)
    figures = {
        "launches": len(plan.launches),
        "programs of the first launch": len(plan.launches[0].programs),
        "programs of the last launch": len(plan.launches[-1].programs),
        "scratch over gradient bytes": f"{plan.workspace / samples:.3f}",
        "bytes beyond the cache over gradient bytes": f"{moved / samples:.2f}",
    }
    return [(name, "fft, ratio 0.05", figure, str(value)) for figure, value in figures.items()]


def error_rows(length: int) -> Rows:
    """The error promised for a layer, and the worst of some constants and waves of its band.

    Relative to what came in, of which such waves leave nothing.
    """
    rounded = Rounded(length)
    count = max(8, 2**19 // length) if length < 2**19 else 2
    rows = [("fft, ratio 0.05", "promised error", rounded.promise)]
    rows += [
        (f"{count} {kind}", "worst float32 error", error)
        for kind, error in rounded.search(count).items()
    ]
    return [(f"{length} samples", case, figure, f"{value:.1e}") for case, figure, value in rows]


def barrier_rows() -> Rows:
    """One row for each barrier: 1 where the race without it is found."""
    return [
        (kernel, f"without barrier {index}, {case.name}", "race found", str(int(found)))
        for kernel, index in barriers()
        for case in BARRIER_CASES
        if case.kernel == kernel
        for found in [found_without(case, index)]
    ]


def _before_others() -> None:
    """Real-time priority, where the system grants it: what others do is not to be measured."""
    with suppress(AttributeError, PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def host_rows() -> Rows:
    """Host time of a call, in processes with a stand-in driver: medians; the machine is named."""
    command = [sys.executable, "-m", "benchmarks.bench_launch", "--json"]
    root = Path(__file__).parents[3]
    runs = []
    for _ in range(HOST_RUNS):
        done = subprocess.run(
            command,
            cwd=root,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            preexec_fn=_before_others,
        )
        runs.append(json.loads(done.stdout))
    return [
        (
            row["model"],
            runs[0]["machine"],
            f"host microseconds, {way} addresses",
            f"{median(run['rows'][index][way] for run in runs):.1f}",
        )
        for index, row in enumerate(runs[0]["rows"])
        for way in ("same", "moved")
    ]


def parts() -> list[tuple[str, Callable[[], Rows]]]:
    """All that is counted, in the order of the table: what it is called, and what counts it."""
    return [
        *((f"{case.kernel}, {case.name}", partial(kernel_rows, case)) for case in CASES),
        *((f"launches of {name}", partial(model_rows, name)) for name in MODELS),
        *((f"errors at {length} samples", partial(error_rows, length)) for length in ERROR_LENGTHS),
        ("races without barriers", barrier_rows),
        ("host times", host_rows),
    ]


def write(path: Path) -> None:
    """Count everything, saying how far it is, and replace the table."""
    rows: Rows = []
    begun = time.monotonic()
    wanted = parts()
    for index, (name, count_rows) in enumerate(wanted):
        rows += count_rows()
        passed = f"{time.monotonic() - begun:.0f} s"
        print(f"{index + 1} of {len(wanted)}, {passed}: {name}", file=sys.stderr, flush=True)
    _replace(path, rows)
    # The estimates are made from the rows above.
    _replace(path, rows + estimate_rows(path))


def estimate_rows(path: Path) -> Rows:
    """Estimated times over those of ``_foreach_mul_``, from the table's counts."""
    rows = []
    for name, lengths in MODELS.items():
        for gpu in model.GPUS:
            parts = model.seconds(name, plan_of(*lengths), gpu, path)
            share = sum(part for _, part in parts) / model.foreach_seconds(name, gpu)
            rows.append((name, gpu.name, "estimated time over _foreach_mul_", f"{share:.1f}"))
    return rows


def _replace(path: Path, rows: Rows) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    os.replace(temporary, path)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
