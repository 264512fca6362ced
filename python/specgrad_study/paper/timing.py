"""Time efficiency: seconds of a round, rounds to a target, their product, and peak memory.

A round is timed with all contenders in turn, so that a machine that slows down slows all of them;
rounds are compared one by one. Memory is the peak of a process that plays one round of
one contender and nothing else. Rounds to the target come from the finished runs: the target is
the accuracy that FedAvg reaches with the same seed, the mean of its last ten rounds, rounded down
to a percent.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from specgrad_fl import machine, prepare, storage
from specgrad_fl.config import Config
from specgrad_fl.engine import Engine
from specgrad_fl.errors import RunError
from specgrad_fl.machine import peak_mib
from specgrad_fl.records import Record
from specgrad_fl.runs import RunDirectory

from specgrad_study.paper.archive import Archive
from specgrad_study.paper.claims import Claim, above
from specgrad_study.paper.experiment import (
    LEFT_OUT,
    Cell,
    Context,
    Experiment,
    Measured,
    Missing,
    Results,
    against,
)
from specgrad_study.paper.presets import Preset
from specgrad_study.paper.sources import Source
from specgrad_study.paper.tables import IMAGES, METHODS

LOOP = "FedAvg + FFT, torch.fft loop"
OP = "FedAvg + FFT"
FILTERS: dict[str, dict[str, Any]] = {
    "FedAvg + LAP-D": {"filter": "lap"},
    "FedAvg + GD": {"filter": "gaussian"},
    OP: {"filter": "fft"},
    LOOP: {"filter": "fft", "filter_backend": "loop"},
}
STORED = "timing.json"
CPU_SECONDS = "CPU seconds of a round"
TIMED = ("s/round", "peak MB", CPU_SECONDS, "filter, % of client time")
QUANTITIES = ("s/round", "rounds to target", "total s", *TIMED[1:])


def _cells(preset: Preset) -> list[Cell]:
    """Small presets time FedAvg and its filters alone."""
    methods = METHODS if preset.name == "paper" else {"FedAvg": {}}
    return [
        Cell(row, dataset, preset.config(dataset, **changes), preset.seeds_for("time"))
        for dataset in IMAGES
        for row, changes in {**methods, **FILTERS}.items()
    ]


def _facts(folder: Path) -> dict[str, Any]:
    """All that was stored: the machine, its load, the contenders; empty before."""
    path = folder / STORED
    if not path.is_file():
        return {}
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return {name: facts[name] for name in ("environment", "load", "contenders")}
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged; restore it, or delete it to measure anew") from error


def measure(cells: Sequence[Cell], context: Context) -> None:
    """Time the contenders of each data set and seed that were not timed together yet."""
    found = _facts(context.folder).get("contenders", {})
    for dataset in IMAGES:
        held = [cell for cell in cells if cell.column == dataset and cell.config is not None]
        for seed in sorted({seed for cell in held for seed in cell.seeds}):
            configs = [
                config.replace(data_root=context.data_root, workers=1)
                for cell in held
                for config in cell.configs()
                if config.seed == seed
            ]
            if all(config.digest in found for config in configs):
                continue
            found |= contest(configs, context.preset.timed_rounds)
            facts = {
                "environment": machine.report(),
                "load": os.getloadavg(),
                "contenders": found,
            }
            storage.make_folder(context.folder)
            storage.write_text(context.folder / STORED, json.dumps(facts, indent=1) + "\n")


def contest(configs: Sequence[Config], rounds: int) -> dict[str, Any]:
    """Rounds of all contenders in turn, after one to warm up; seconds by digest."""
    dataset = prepare.load_data(configs[0])
    timed: dict[str, list[Record]] = {config.digest: [] for config in configs}
    worked: dict[str, list[float]] = {config.digest: [] for config in configs}
    with tempfile.TemporaryDirectory() as folder:
        engines = []
        for config in configs:
            partition = prepare.divide(config, dataset)
            # an evaluation is the same for all: it is left out of the contest
            quiet = config.replace(rounds=rounds + 2, eval_every=rounds + 2, eval_tail=0)
            run = RunDirectory(Path(folder) / config.digest)
            run.path.mkdir()
            resolved = prepare.resolve(quiet, dataset, partition)
            engines.append(Engine(resolved, dataset, partition, run).start())
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
                each.close()
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

    dataset = prepare.load_data(config)
    partition = prepare.divide(config, dataset)
    with tempfile.TemporaryDirectory() as folder:
        resolved = prepare.resolve(config.replace(rounds=2, eval_every=2), dataset, partition)
        alone = Engine(resolved, dataset, partition, RunDirectory(Path(folder))).start()
        try:
            with suppress(OSError):  # begin the peak anew, where the system can do that
                Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
            alone.round(0)
        finally:
            alone.close()
    if torch.device(config.device).type == "cuda":
        return torch.cuda.max_memory_allocated(config.device) / 2**20
    return peak_mib()


def remark(results: Results, archive: Archive) -> str:
    """The machine that was timed, and what else it did."""
    facts = _facts(archive.folder)
    if not facts:
        return ""
    machine = facts["environment"]
    return (
        f"Timed on {machine['cpu']} with {machine['cores']} cores, at a load of "
        f"{facts['load'][0]:.1f} processes."
    )


def rounds_to(target: float, evaluations: Mapping[int, float]) -> int | None:
    """The first evaluated round that reaches the target."""
    reached = [number for number, accuracy in evaluations.items() if accuracy >= target]
    return min(reached, default=None)


def reading(cells: Sequence[Cell], archive: Archive, measure: str) -> Results:
    """One column for each data set and quantity."""
    facts = _facts(archive.folder)
    results: Results = {}
    bases = {cell.column: cell.finished(archive) for cell in cells if cell.row == "FedAvg"}
    for cell in cells:
        targets = {
            seed: math.floor(100 * run.summary["mean_last_10"]) / 100
            for seed, run in bases[cell.column].items()
        }
        found = _timed(cell, facts)
        if cell.row != LOOP and cell.config is None:
            found |= dict.fromkeys(("rounds to target", "total s"), Measured(missing=(LEFT_OUT,)))
        elif cell.row != LOOP:
            rounds = _rounds(cell, archive, targets)
            found["rounds to target"] = rounds
            pace = found["s/round"].values
            found["total s"] = Measured(
                {s: n * pace[s] for s, n in rounds.values.items() if s in pace},
                (*rounds.missing, *found["s/round"].missing),
                {s: rounds.sources[s] for s in rounds.values if s in pace},
            )
        for quantity in QUANTITIES:
            if quantity in found:
                results[cell.row, f"{cell.column}, {quantity}"] = found[quantity]
    return results


def _rounds(cell: Cell, archive: Archive, targets: Mapping[int, float]) -> Measured:
    """Rounds until the accuracy that FedAvg ends with, seed by seed."""
    rounds: dict[int, float] = {}
    sources, failed = {}, []
    for seed, run in cell.finished(archive).items():
        if seed not in targets or not run.evaluations:
            failed.append(Missing(seed, "no rounds are known, or FedAvg has no result"))
            continue
        reached = rounds_to(targets[seed], run.evaluations)
        if reached is None:
            failed.append(Missing(seed, f"does not reach {targets[seed]:.0%}"))
        else:
            rounds[seed], sources[seed] = reached, run.source
    return Measured(rounds, (*failed, *cell.missing(archive)), sources)


def _timed(cell: Cell, facts: Mapping[str, Any]) -> dict[str, Measured]:
    """What was measured in timed rounds, one value for each seed."""
    if cell.config is None:
        return dict.fromkeys(TIMED, Measured(missing=(LEFT_OUT,)))
    timings = facts.get("contenders", {})
    held = {c.seed: timings[c.digest] for c in cell.configs() if c.digest in timings}
    absent = tuple(Missing(seed, "not timed") for seed in cell.seeds if seed not in held)
    sources = dict.fromkeys(held, Source.of(facts.get("environment")))

    def of(value: Callable[[dict[str, Any]], float]) -> Measured:
        return Measured({seed: value(each) for seed, each in held.items()}, absent, sources)

    return {
        "s/round": of(lambda each: statistics.median(each["seconds"])),
        "peak MB": of(lambda each: each["peak_mib"] * 2**20 / 1e6),
        CPU_SECONDS: of(lambda each: statistics.median(each["cpu_seconds"])),
        "filter, % of client time": of(lambda each: 100 * each["filter_share"]),
    }


FILTERED = ("FedAvg + LAP-D", "FedAvg + GD", OP)
TIME = Experiment(
    name="time",
    title="Time efficiency",
    reference="Table VIII",
    cells=_cells,
    claims=(
        Claim(
            "the filter has a measurable cost in each round",
            "Section V-D and Table VIII",
            (above(OP, "FedAvg"),),
            columns=tuple(f"{dataset}, {CPU_SECONDS}" for dataset in IMAGES),
        ),
        Claim(
            "FFT and spatial variants reach FedAvg's accuracy in fewer rounds",
            "Section V-D and Table VIII",
            tuple(above("FedAvg", row) for row in FILTERED),
            columns=tuple(f"{dataset}, rounds to target" for dataset in IMAGES),
        ),
        Claim(
            "FFT and spatial variants reach FedAvg's accuracy in less time",
            "Section V-D and Table VIII",
            tuple(above("FedAvg", row) for row in FILTERED),
            columns=tuple(f"{dataset}, total s" for dataset in IMAGES),
        ),
        Claim(
            "the op costs less than a loop of torch.fft",
            "",
            (above(LOOP, OP),),
            columns=tuple(f"{dataset}, {CPU_SECONDS}" for dataset in IMAGES),
        ),
    ),
    reading=reading,
    measure=measure,
    # the loop computes what the op computes: it is timed, and not trained
    trained=lambda cell: cell.row != LOOP,
    baseline=against("FedAvg"),
    unit="of the column's unit",
    remark=remark,
    note=(
        "Seconds of a round: the median over rounds that all contenders play in turn, without "
        "evaluation, measured anew for each seed. Rounds to target: until the accuracy of the "
        "last ten rounds of FedAvg with the same seed, rounded down to a percent; total: those "
        "times the seconds of a round. Memory: the peak during one round in a process of its own, "
        "with the data set. The torch.fft loop computes the same filter as the op; it is timed "
        "and has no rounds of its own. CPU seconds leave out what other processes take, and mean "
        "nothing on a GPU. A gain is the difference to FedAvg: here less is better."
    ),
)


if __name__ == "__main__":
    print(one_round(Config(**json.load(sys.stdin))))
