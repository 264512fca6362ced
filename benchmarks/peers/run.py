"""Measure all contenders in turn: ``make bench-peers``, or ``python -m benchmarks.peers.run``.

Every contender is started once and stays. A turn is one round of each, in an order that shifts
from turn to turn; while one trains, the others wait. The first two turns warm up and are not
counted (after its first round this trainer draws how the data are divided).
"""

from __future__ import annotations

import argparse
import math
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.peers.turns import Contender
from benchmarks.peers.workloads import WORKLOADS, Workload

ENVIRONMENTS = machine.ROOT / "build" / "peers"
CORES = machine.cores()
OURS, LOOP = "specgrad", "plain loop"
# what keeps freed memory in the process, as this trainer does: see specgrad_fl/machine.py
KEPT_MALLOC = {
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}
TUNED = ", tuned"
WARM = 2
CLOCKS = {"wall": "seconds a round", "cpu": "CPU seconds a round"}
# of the largest weight: rounding after one round
SAME = 1e-5


@dataclass(frozen=True)
class Way:
    """Command of a contender: environment, module, processes and threads of each."""

    environment: str
    module: str
    processes: int = 1
    variant: str = ""

    def command(self, workload: str, tuned: bool) -> list[str]:
        python = ENVIRONMENTS / self.environment / "bin" / "python" if self.environment else None
        words = [str(python or sys.executable), "-m"]
        if self.processes > 1:
            words += ["torch.distributed.run", f"--nproc_per_node={self.processes}", "--module"]
        layout = ["--channels-last"] if tuned and "resnet" in workload else []
        return [*words, f"benchmarks.peers.{self.module}", *layout, workload]

    def variables(self, workload: str, tuned: bool) -> dict[str, str]:
        several = self.processes > 1 or self.variant in ("threads", "processes")
        threads = 1 if several else WORKLOADS[workload].threads
        return {
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": str(machine.ROOT),
            "PEER_VARIANT": self.variant,
            "RAY_worker_niceness": "0",  # or its workers would give way to all other processes
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "FLWR_TELEMETRY_ENABLED": "0",
            **(KEPT_MALLOC if tuned else {}),
        }


WAYS = {
    OURS: Way("", "with_specgrad"),
    LOOP: Way("", "with_loop", variant="plain"),
    "bare loop": Way("", "with_loop", variant="bare"),
    "pfl": Way("pfl", "with_pfl", CORES),
    "pfl, one process": Way("pfl", "with_pfl"),
    "Flower": Way("flower", "with_flower"),
    "BlazeFL": Way("blazefl", "with_blazefl", variant="base"),
    "BlazeFL, threads": Way("blazefl", "with_blazefl", variant="threads"),
    "BlazeFL, processes": Way("blazefl", "with_blazefl", variant="processes"),
}
PACKAGES = {"pfl": "pfl", "flower": "flwr", "blazefl": "blazefl"}


def contenders(names: Sequence[str]) -> Iterator[tuple[str, Way, bool]]:
    """The chosen ways, and all but ours once more with memory order and allocator of ours."""
    for name in names:
        yield name, WAYS[name], False
        if name != OURS:
            yield name + TUNED, WAYS[name], True


def check(workload: Workload, name: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse a contender that did other work than the plain loop."""
    if found.keys() != expected.keys():
        raise RuntimeError(f"{name} trained {sorted(found)}, not {sorted(expected)}")
    if not workload.one_batch:
        return
    largest = max(float(tensor.abs().max()) for tensor in expected.values())
    for key, tensor in expected.items():
        off = float((found[key] - tensor).abs().max()) / largest
        if not off <= SAME:
            raise RuntimeError(f"after a round, {key} of {name} is off by {off:.1e}")


def measure(workload: str, names: Sequence[str], turns: int) -> dict[str, dict[str, Any]]:
    """Wall-clock and CPU seconds of each contender's rounds, its memory and its start."""
    rows: dict[str, dict[str, Any]] = {}
    started: dict[str, Contender] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for name, way, tuned in contenders(names):
            print(f"{workload}: start {name}", file=sys.stderr, flush=True)
            place = Path(folder) / name.replace(" ", "_")
            place.mkdir()
            one = Contender(way.command(workload, tuned), place, way.variables(workload, tuned))
            stack.callback(one.close)
            started[name] = one
            rows[name] = {"wall": [], "cpu": [], "start": one.seconds_to_start}
        order = list(started)
        for turn in range(turns + WARM):
            for name in order:
                wall, cpu = started[name].turn()
                print(f"{workload}: {name} {wall:.3f} s", file=sys.stderr, flush=True)
                if turn >= WARM:
                    rows[name]["wall"].append(wall)
                    rows[name]["cpu"].append(cpu)
            order = [*order[1:], order[0]]
        for name, one in started.items():
            rows[name]["mib"] = one.mib()
            if LOOP in started:
                check(WORKLOADS[workload], name, one.weights(), started[LOOP].weights())
    return rows


def versions(names: Sequence[str]) -> dict[str, str]:
    """Version of each chosen peer, as its environment has it."""
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    environments = {WAYS[name].environment for name in names}
    return {
        package: subprocess.run(
            [str(ENVIRONMENTS / name / "bin" / "python"), "-c", code, package],
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for name, package in PACKAGES.items()
        if name in environments
    }  # fmt: skip


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least and most."""
    return statistics.median(values), min(values), max(values)


def told(values: Sequence[float]) -> str:
    """Median and, in brackets, least and most."""
    middle, least, most = interval(values)
    return f"{middle:.3f} ({least:.3f} to {most:.3f})"


def table(result: dict[str, Any]) -> str:
    """A Markdown table for each workload, the fastest first."""
    lines = []
    for name, rows in result["workloads"].items():
        lines += [
            f"**{WORKLOADS[name].title}**, seconds a round, median (least to most)\n",
            "| contender | wall | CPU | wall over ours | CPU over ours | memory |",
            "|---|---|---|---|---|---|",
        ]
        middles = {
            contender: [statistics.median(row[clock]) for clock in CLOCKS]
            for contender, row in rows.items()
        }
        for contender in sorted(middles, key=middles.__getitem__):
            row, ratios = rows[contender], ["-", "-"]
            if OURS in rows:
                pairs = zip(middles[contender], middles[OURS], strict=True)
                ratios = [f"{other / ours:.2f}" for other, ours in pairs]
            lines.append(
                f"| {contender} | {told(row['wall'])} | {told(row['cpu'])} | "
                f"{' | '.join(ratios)} | {row['mib']:.0f} MiB |"
            )
        lines.append("")
    return "\n".join(lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """Bars of wall-clock and CPU seconds a round, with least and most."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = result["workloads"]
    figure, axes = pyplot.subplots(
        len(chosen), 2, figsize=(9.2, 4.2 * len(chosen)), sharey="row", squeeze=False
    )
    for line, (name, rows) in zip(axes, chosen.items(), strict=True):
        ordered = sorted(rows, key=lambda one: -statistics.median(rows[one]["cpu"]))
        for axis, clock, title in zip(line, CLOCKS, CLOCKS.values(), strict=True):
            spans = [interval(rows[one][clock]) for one in ordered]
            spread = [(middle - least, most - middle) for middle, least, most in spans]
            colours = ["tab:green" if one == OURS else "tab:gray" for one in ordered]
            axis.barh(
                ordered, [middle for middle, _, _ in spans],
                xerr=list(zip(*spread, strict=True)), color=colours,
            )  # fmt: skip
            axis.set_xscale("log")
            lowest, highest = min(low for _, low, _ in spans), max(high for *_, high in spans)
            axis.set_xlim(
                10.0 ** math.floor(math.log10(lowest)), 10.0 ** math.ceil(math.log10(highest))
            )
            axis.set_xlabel(title)
            axis.set_title(WORKLOADS[name].title, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.run", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--contenders", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--turns", type=int, default=5, help="rounds that count; default 5")
    parser.add_argument("--json", type=Path, help="all figures; workloads in it are kept")
    parser.add_argument("--plot", type=Path, help="picture of all workloads in the JSON file")
    arguments = parser.parse_args()
    machine.measure_parts(
        "workloads", arguments.workloads,
        lambda name: measure(name, arguments.contenders, arguments.turns),
        arguments, table, plot, {"peers": versions(arguments.contenders)},
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all contenders are ended
    main()
