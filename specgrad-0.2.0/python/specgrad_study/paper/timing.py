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
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from specgrad_fl import machine, prepare, storage
from specgrad_fl.config import Config
from specgrad_fl.errors import RunError
from specgrad_fl.machine import peak_mib

from specgrad_study import fleet
from specgrad_study.paper.archive import Archive, Finished, Measured, Missing, Results, Source
from specgrad_study.paper.claims import Claim, above, each_above
from specgrad_study.paper.experiment import Cell, Context, Experiment, grid, on
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
STORED = "timing.json"
CPU_SECONDS = "CPU seconds of a round"
# what timed rounds tell, from what is stored of them
TIMED: Mapping[str, Callable[[dict[str, Any]], float]] = {
    "s/round": lambda each: statistics.median(each["seconds"]),
    "peak MB": lambda each: each["peak_mib"] * 2**20 / 1e6,
    CPU_SECONDS: lambda each: statistics.median(each["cpu_seconds"]),
    "filter, % of client time": lambda each: 100 * each["filter_share"],
}
QUANTITIES = ("s/round", "rounds to target", "total s", *list(TIMED)[1:])


def _cells(preset: Preset) -> list[Cell]:
    """Small presets time FedAvg and its filters alone."""
    methods = METHODS if preset.name == "paper" else {"FedAvg": {}}
    return grid(preset, on(*IMAGES), {**methods, **FILTERS})


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
            facts = {"environment": machine.report(), "load": os.getloadavg(), "contenders": found}
            storage.make_folder(context.folder)
            storage.write_json(context.folder / STORED, facts)


def contest(configs: Sequence[Config], rounds: int) -> dict[str, Any]:
    """Rounds of all contenders in turn, after one to warm up; seconds by digest."""
    dataset = prepare.load_data(configs[0])
    timed: dict[str, dict[str, list[float]]] = {
        config.digest: {"seconds": [], "cpu_seconds": [], "filter_share": []} for config in configs
    }
    with ExitStack() as stack:
        engines = {}
        for config in configs:
            # an evaluation is the same for all: it is left out of the contest
            quiet = config.replace(rounds=rounds + 2, eval_every=rounds + 2, eval_tail=0)
            partition = prepare.divide(config, dataset)
            tried = fleet.trial(quiet, dataset, partition)
            engines[config.digest] = stack.enter_context(tried)
        for number in range(rounds + 1):
            for digest, each in engines.items():
                begun = time.process_time()
                record = each.round(number)
                if number:
                    timed[digest]["seconds"].append(record["seconds"]["round"])
                    timed[digest]["cpu_seconds"].append(time.process_time() - begun)
                    timed[digest]["filter_share"].append(record["filter_share"])
    return {
        config.digest: {
            **timed[config.digest],
            "filter_share": statistics.median(timed[config.digest]["filter_share"]),
            "peak_mib": _peak_of(config),
        }
        for config in configs
    }


def _peak_of(config: Config) -> float:
    """The peak of a process of its own."""
    command, order = [sys.executable, "-m", "specgrad_study.paper.timing"], config.as_dict()
    child = subprocess.run(
        command, input=json.dumps(order), capture_output=True, text=True, check=False
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
    with fleet.trial(config.replace(rounds=2, eval_every=2), dataset, partition) as alone:
        with suppress(OSError):  # begin the peak anew, where the system can do that
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        alone.round(0)
    if torch.device(config.device).type == "cuda":
        return torch.cuda.max_memory_allocated(config.device) / 2**20
    return peak_mib()


def remark(results: Results, archive: Archive) -> str:
    """The machine that was timed, and what else it did."""
    facts = _facts(archive.folder)
    if not facts:
        return ""
    where = "{cpu} with {cores} cores".format(**facts["environment"])
    return f"Timed on {where}, at a load of {facts['load'][0]:.1f} processes."


def reading(cells: Sequence[Cell], archive: Archive, measure: str) -> Results:
    """One column for each data set and quantity."""
    facts = _facts(archive.folder)
    results: Results = {}
    bases = {cell.column: cell.finished(archive) for cell in cells if cell.row == "FedAvg"}
    for cell in cells:
        found = _timed(cell, facts)
        if cell.row != LOOP:
            rounds, pace = _rounds(cell, archive, bases[cell.column]), found["s/round"]
            both = [seed for seed in rounds.values if seed in pace.values]
            found["rounds to target"] = rounds
            found["total s"] = Measured(
                {seed: rounds.values[seed] * pace.values[seed] for seed in both},
                tuple(dict.fromkeys((*rounds.missing, *pace.missing))),
                {seed: rounds.sources[seed] for seed in both},
            )
        for quantity in QUANTITIES:
            if quantity in found:
                results[cell.row, f"{cell.column}, {quantity}"] = found[quantity]
    return results


def _rounds(cell: Cell, archive: Archive, bases: Mapping[int, Finished]) -> Measured:
    """Rounds until the accuracy that FedAvg ends with, seed by seed."""
    rounds: dict[int, float] = {}
    failed = []
    runs = cell.finished(archive)
    for seed, run in runs.items():
        if seed not in bases or not run.evaluations:
            failed.append(Missing(seed, "no rounds are known, or FedAvg has no result"))
            continue
        target = math.floor(100 * bases[seed].summary["mean_last_10"]) / 100
        reached = [number for number, value in run.evaluations.items() if value >= target]
        if reached:
            rounds[seed] = min(reached)
        else:
            failed.append(Missing(seed, f"does not reach {target:.0%}"))
    sources = {seed: runs[seed].source for seed in rounds}
    return Measured(rounds, (*failed, *cell.missing(archive)), sources)


def _timed(cell: Cell, facts: Mapping[str, Any]) -> dict[str, Measured]:
    """Quantities of timed rounds, one value for each seed."""
    timings = facts.get("contenders", {})
    held = {c.seed: timings[c.digest] for c in cell.configs() if c.digest in timings}
    absent = cell.lacking({seed: "not timed" for seed in cell.seeds if seed not in held})
    sources = dict.fromkeys(held, Source.of(facts.get("environment")))
    return {
        quantity: Measured({seed: value(each) for seed, each in held.items()}, absent, sources)
        for quantity, value in TIMED.items()
    }


FILTERED = ("FedAvg + LAP-D", "FedAvg + GD", OP)
TIME = Experiment(
    name="time",
    title="Time efficiency",
    reference="Table VIII",
    table=_cells,
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
            each_above(["FedAvg"], FILTERED),
            columns=tuple(f"{dataset}, rounds to target" for dataset in IMAGES),
        ),
        Claim(
            "FFT and spatial variants reach FedAvg's accuracy in less time",
            "Section V-D and Table VIII",
            each_above(["FedAvg"], FILTERED),
            columns=tuple(f"{dataset}, total s" for dataset in IMAGES),
        ),
        Claim(
            "the op costs less than a loop of torch.fft",
            contrasts=(above(LOOP, OP),),
            columns=tuple(f"{dataset}, {CPU_SECONDS}" for dataset in IMAGES),
        ),
    ),
    draws=(),
    reading=reading,
    measure=measure,
    # the loop computes what the op computes: it is timed, and not trained
    trained=lambda cell: cell.row != LOOP,
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
