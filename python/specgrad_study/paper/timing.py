"""Time efficiency: seconds of a round, rounds to a target, their product, and peak memory.

A round is timed with all contenders in turn, so that a machine that slows down slows all of them;
rounds are compared one by one. Memory is the peak of a process that plays one round of
one contender and nothing else. Rounds to the target come from the finished runs: the target is
the accuracy that FedAvg reaches, the mean of its last ten rounds, rounded down to a percent.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specgrad_fl import atomic, engine, environment
from specgrad_fl.client import forget_peak, peak_mib
from specgrad_fl.config import Config
from specgrad_fl.engine import Engine
from specgrad_fl.errors import RunError
from specgrad_fl.runs import Record, RunDirectory

from specgrad_study.paper.claims import Claim, above
from specgrad_study.paper.model import (
    LEFT_OUT,
    Cell,
    Context,
    Experiment,
    Measured,
    Results,
    accuracies,
)
from specgrad_study.paper.presets import Preset
from specgrad_study.paper.tables import IMAGES, METHODS

LOOP = "FedAvg + FFT, torch.fft loop"
OP = "FedAvg + FFT"
FILTERS: dict[str, dict[str, Any]] = {
    "FedAvg + LAP-D": {"filter": "lap"},
    "FedAvg + GD": {"filter": "gaussian"},
    OP: {"filter": "fft"},
    LOOP: {"filter": "fft", "filter_backend": "loop"},
}
CPU_SECONDS = "CPU seconds of a round"
QUANTITIES = (
    "s/round",
    "rounds to target",
    "total s",
    "peak MB",
    CPU_SECONDS,
    "filter, % of client time",
)


def _cells(preset: Preset) -> list[Cell]:
    """Small presets time FedAvg and its filters alone."""
    methods = METHODS if preset.name == "paper" else {"FedAvg": {}}
    return [
        Cell(row, dataset, preset.config(dataset, **changes), preset.seeds_for("time"))
        for dataset in IMAGES
        for row, changes in {**methods, **FILTERS}.items()
    ]


def _stored(folder: Path) -> Path:
    return folder / "timing.json"


def _facts(folder: Path) -> dict[str, Any]:
    """All that was stored: the machine, its load, the contenders; empty before."""
    path = _stored(folder)
    if not path.is_file():
        return {}
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return {name: facts[name] for name in ("environment", "load", "contenders")}
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged; restore it, or delete it to measure anew") from error


def read(folder: Path) -> dict[str, Any]:
    """Timings by the digest of the configuration."""
    return _facts(folder).get("contenders", {})


def measure(cells: Sequence[Cell], context: Context) -> None:
    """Time the contenders of each data set that were not timed together yet."""
    found = read(context.folder)
    for dataset in IMAGES:
        configs = [
            cell.config.replace(data_root=context.data_root, workers=1)
            for cell in cells
            if cell.column == dataset and cell.config is not None
        ]
        if all(config.digest in found for config in configs):
            continue
        found |= contest(configs, context.preset.timed_rounds)
        facts = {"environment": environment.report(), "load": os.getloadavg(), "contenders": found}
        atomic.make_folder(context.folder)
        atomic.write_text(_stored(context.folder), json.dumps(facts, indent=1) + "\n")


def contest(configs: Sequence[Config], rounds: int) -> dict[str, Any]:
    """Rounds of all contenders in turn, after one to warm up; seconds by digest."""
    dataset = engine.load_data(configs[0])
    timed: dict[str, list[Record]] = {config.digest: [] for config in configs}
    worked: dict[str, list[float]] = {config.digest: [] for config in configs}
    with tempfile.TemporaryDirectory() as folder:
        engines = []
        for config in configs:
            partition = engine.divide(config, dataset)
            # an evaluation is the same for all: it is left out of the contest
            quiet = config.replace(rounds=rounds + 2, eval_every=rounds + 2, eval_tail=0)
            run = RunDirectory(Path(folder) / config.digest)
            run.path.mkdir()
            resolved = engine.resolve(quiet, dataset, partition)
            engines.append(Engine(resolved, dataset, partition, run))
        try:
            for number in range(rounds + 1):
                for config, each in zip(configs, engines, strict=True):
                    begun = time.process_time()
                    record = each.round(number)
                    if number:
                        timed[config.digest].append(record)
                        worked[config.digest].append(time.process_time() - begun)
        finally:
            for each in engines:
                each.executor.close()
    return {
        config.digest: {
            "seconds": [record["seconds"]["round"] for record in timed[config.digest]],
            "cpu_seconds": worked[config.digest],
            "filter_share": statistics.median(r["filter_share"] for r in timed[config.digest]),
            "peak_mib": _peak_of(config),
        }
        for config in configs
    }


def _peak_of(config: Config) -> float:
    """The peak of a process of its own."""
    child = subprocess.run(
        [sys.executable, "-m", "specgrad_study.paper.timing"],
        input=json.dumps(config.as_dict()),
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        ending = (child.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"a round of {config.filter} cannot be measured: {ending}")
    return float(child.stdout)


def one_round(config: Config) -> float:
    """Play one round; the peak memory in MiB, of the GPU where there is one."""
    import torch

    dataset = engine.load_data(config)
    partition = engine.divide(config, dataset)
    with tempfile.TemporaryDirectory() as folder:
        resolved = engine.resolve(config.replace(rounds=2, eval_every=2), dataset, partition)
        alone = Engine(resolved, dataset, partition, RunDirectory(Path(folder)))
        try:
            forget_peak()
            alone.round(0)
        finally:
            alone.executor.close()
    if torch.device(config.device).type == "cuda":
        return torch.cuda.max_memory_allocated(config.device) / 2**20
    return peak_mib()


def remark(folder: Path) -> str:
    """The machine that was timed, and what else it did."""
    facts = _facts(folder)
    if not facts:
        return ""
    machine = facts["environment"]
    return (
        f"Timed on {machine['cpu']} with {machine['cores']} cores, at a load of "
        f"{facts['load'][0]:.1f} processes."
    )


def rounds_to(target: float, records: Sequence[Record]) -> int | None:
    """The first evaluated round that reaches the target."""
    reached = [r["round"] for r in records if r.get("test_accuracy", -1) >= target]
    return reached[0] if reached else None


def reading(cells: Sequence[Cell], folder: Path, measure: str) -> Results:
    """One column for each data set and quantity."""
    timings = read(folder)
    results: Results = {}
    finished = accuracies(cells, folder, "last10")
    by_place = {cell.place: cell for cell in cells}
    for cell in cells:
        base = finished["FedAvg", cell.column].values
        behind = by_place[OP, cell.column] if cell.row == LOOP else cell
        timing = timings.get(cell.config.digest) if cell.config else None
        target = math.floor(statistics.fmean(base.values())) / 100 if base else None
        for quantity, found in _quantities(behind, folder, timing, target).items():
            results[cell.row, f"{cell.column}, {quantity}"] = found
    return results


def _quantities(
    cell: Cell, folder: Path, timing: dict[str, Any] | None, target: float | None
) -> dict[str, Measured]:
    if cell.config is None:
        return {quantity: Measured(missing=(LEFT_OUT,)) for quantity in QUANTITIES}
    untimed = Measured(missing=("not timed",))
    seconds = dict(enumerate(timing["seconds"])) if timing else {}
    rounds: dict[int, float] = {}
    failed: list[str] = [] if target is not None else ["FedAvg, which sets the target: not run"]
    for seed, run in cell.finished(folder).items():
        reached = None if target is None else rounds_to(target, run.records())
        if reached is not None:
            rounds[seed] = reached
        elif target is not None:
            failed.append(f"seed {seed} does not reach {target:.0%}")
    counted = Measured(rounds, (*failed, *cell.why_missing(folder)))
    pace = statistics.median(seconds.values()) if seconds else 0.0
    total = {seed: each * pace for seed, each in rounds.items()} if seconds else {}
    return {
        "s/round": Measured(seconds) if timing else untimed,
        "rounds to target": counted,
        "total s": Measured(total, counted.missing if timing else untimed.missing),
        "peak MB": Measured({0: timing["peak_mib"] * 2**20 / 1e6}) if timing else untimed,
        CPU_SECONDS: Measured(dict(enumerate(timing["cpu_seconds"]))) if timing else untimed,
        "filter, % of client time": (
            Measured({0: 100 * timing["filter_share"]}) if timing else untimed
        ),
    }


TIME = Experiment(
    name="time",
    title="Time efficiency",
    reference="Table VIII",
    cells=_cells,
    claims=(
        Claim("the filter makes a round dearer", (above(OP, "FedAvg"),), CPU_SECONDS),
        Claim("(ours) the op costs less than the loop", (above(LOOP, OP),), CPU_SECONDS),
        *(
            Claim(f"{row} needs {what} than FedAvg", (above("FedAvg", row),), where)
            for where, what in (("rounds to target", "fewer rounds"), ("total s", "less time"))
            for row in ("FedAvg + LAP-D", "FedAvg + GD", OP)
        ),
    ),
    reading=reading,
    measure=measure,
    # the loop computes what the op computes, so its rounds to target are those of the op
    trained=lambda cell: cell.row != LOOP,
    accuracy=False,
    remark=remark,
    note=(
        "Seconds of a round: over rounds that all contenders play in turn, without evaluation. "
        "Rounds to target: until the accuracy of FedAvg's last ten rounds, rounded down to a "
        "percent; total: those times the median round. Memory: the peak during one round in a "
        "process of its own, with the data set. The torch.fft loop computes the same filter as the "
        "op, so it takes the op's rounds. Columns of seconds have one value for each timed round; "
        "CPU seconds leave out what other processes take, and mean nothing on a GPU."
    ),
)


if __name__ == "__main__":
    print(one_round(Config(**json.load(sys.stdin))))
