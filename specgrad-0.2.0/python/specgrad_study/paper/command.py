"""``specgrad-fl reproduce``: run what is missing, or tell how long that takes; write the report."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from timeit import timeit

from specgrad_data import Dataset
from specgrad_fl import engine, prepare
from specgrad_fl.config import Config, read_toml
from specgrad_fl.errors import RunError, suggest
from specgrad_fl.progress import clock
from specgrad_fl.runs import RunDirectory, run_name

from specgrad_study import fleet
from specgrad_study.compare import check_measure
from specgrad_study.fleet import Job
from specgrad_study.paper import registry, report
from specgrad_study.paper.archive import Archive, Earlier
from specgrad_study.paper.experiment import Cell, Context, Experiment, Part, Subject, tuned
from specgrad_study.paper.presets import PRESETS, Preset

Chosen = list[tuple[Experiment, list[Cell]]]
STEPS = 4
# settings without influence on the cost of a step: runs that differ by them are of one kind
FREE = {
    "alpha": 0.1, "seed": 0, "ratio": 0.05, "rounds": 1, "epochs": 1, "options": {}, "lr": 0.1,
    "filter_order": "", "filter_select": "auto", "eval_every": 1, "eval_tail": 0,
}  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """The command."""
    preset = _preset(arguments)
    check_measure(arguments.measure)
    folder = arguments.runs or Path("runs") / preset.name
    chosen = _chosen(arguments, preset)
    every = [cell for experiment, cells in chosen for cell in cells if experiment.trained(cell)]
    # side by side, each run has one process
    workers = arguments.workers or (1 if arguments.jobs > 1 else 0)
    jobs = jobs_of(every, folder, arguments.data_root, workers)
    machine, machines = parse_shard(arguments.shard)
    earlier = tuple(Earlier.read(path) for path in arguments.with_results)
    before = Archive(folder, earlier)
    missing = [
        job
        for job in fleet.missing(shard(jobs, machine, machines))
        if before.finished(job.config) is None
    ]
    if arguments.dry_run:
        _estimate(missing, chosen, arguments)
        return
    refusals: list[str] = []
    if not arguments.report_only:
        outcomes = fleet.play_shown(missing, arguments.jobs, arguments.quiet)
        # divergence is a result, not a refusal
        refused = [outcome for outcome in outcomes if outcome.status == fleet.REFUSED]
        refusals = [f"{outcome.job.path.name}: {outcome.reason}" for outcome in refused]
        with fleet.status(arguments.quiet) as say:
            context = Context(preset, folder, say, arguments.data_root, workers)
            # what is measured once is measured by the first of several machines
            for experiment, cells in chosen if machine == 1 else ():
                if experiment.measure is not None:
                    try:
                        experiment.measure(cells, context)
                    except RunError as error:
                        refusals.append(f"{experiment.name}: {error}")
    subject = Subject(preset, Archive(folder, earlier), arguments.measure, _again(arguments))
    parts = [Part.read(experiment, cells, subject) for experiment, cells in chosen]
    print(report.write(parts, subject, arguments.out or folder / "report"))
    if refusals:
        raise RunError(
            f"{len(refusals)} runs or measurements did not finish; the first: {refusals[0]}"
        )


def _preset(arguments: argparse.Namespace) -> Preset:
    if arguments.preset not in PRESETS:
        name = arguments.preset
        raise RunError(f"there is no preset {name!r}; {suggest(name, PRESETS)}")
    preset = PRESETS[arguments.preset]()
    if arguments.device:
        return replace(preset, base=preset.base.replace(device=arguments.device))
    return preset


def _chosen(arguments: argparse.Namespace, preset: Preset) -> Chosen:
    """The experiments with their cells, tuned and with the seeds asked for."""
    files = [Config(**read_toml(path)) for path in arguments.tuned]
    chosen = []
    for experiment in registry.find(arguments.names):
        cells = tuned(experiment.cells(preset), files)
        if arguments.seeds:
            cells = [replace(cell, seeds=tuple(arguments.seeds)) for cell in cells]
        chosen.append((experiment, cells))
    return chosen


def _again(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The command that makes the same report, wherever its folders are."""
    words = [*arguments.names, f"--preset={arguments.preset}"]
    words += [f"--seeds={','.join(map(str, arguments.seeds))}"] if arguments.seeds else []
    words += [f"--measure={arguments.measure}"] if arguments.measure != "last10" else []
    words += [f"--tuned={path.name}" for path in arguments.tuned]
    words += [f"--with={path.parent.name}/{path.name}" for path in arguments.with_results]
    return tuple(words)


def parse_shard(text: str) -> tuple[int, int]:
    """``i/n``: the i-th of n parts, counted from 1.

    >>> parse_shard("2/3")
    (2, 3)
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise RunError(f"shard is {text!r}; write i/n with i from 1 to n, such as 1/4")
    return int(match[1]), int(match[2])


def jobs_of(
    cells: Sequence[Cell], folder: Path, data_root: str = "", workers: int = 0
) -> list[Job]:
    """The runs of cells, each once; the first seed of every cell comes before the second."""
    turns = itertools.zip_longest(*(cell.configs() for cell in cells))
    jobs = {}
    for config in filter(None, itertools.chain.from_iterable(turns)):
        played = config.replace(data_root=data_root, workers=workers or config.workers)
        jobs[run_name(config)] = Job.of(played, folder)
    return list(jobs.values())


def shard(jobs: Sequence[Job], part: int, parts: int) -> list[Job]:
    """Every n-th job, so that long and short ones spread evenly."""
    return list(jobs[part - 1 :: parts])


@dataclass(frozen=True)
class Pace:
    """Seconds of a local step, of scoring the test set once, and what a round consists of."""

    step: float
    score: float
    samples: float


def _pace(config: Config, dataset: Dataset) -> Pace:
    """Time one client for a few steps, after as many to warm up."""
    whole = prepare.divide(config, dataset)
    few = STEPS * config.batch_size
    cut = replace(whole, clients=[held[:few] for held in whole.clients])
    with fleet.trial(config.replace(workers=1, epochs=1), dataset, cut) as tried:
        tried.executor.train(0, config.lr, [0])
        step = timeit(lambda: tried.executor.train(0, config.lr, [0]), number=1)
        score = timeit(tried.executor.score, number=1)
    steps = math.ceil(len(cut.clients[0]) / config.batch_size)
    return Pace(step / steps, score, sum(whole.sizes) / len(whole.clients))


def _rest(config: Config, pace: Pace, rounds_done: int) -> float:
    """Seconds that the rest of a run takes in one process."""
    config = config.replace(eval_every=config.eval_every or 1, eval_tail=max(config.eval_tail, 0))
    each = config.active * config.epochs * math.ceil(pace.samples / config.batch_size)
    rest = range(rounds_done + 1, config.rounds + 1)
    scored = sum(engine.evaluates(config, done) for done in rest)
    return len(rest) * each * pace.step + scored * pace.score


def _estimate(jobs: Sequence[Job], chosen: Chosen, arguments: argparse.Namespace) -> None:
    """Tell how long the runs take one after the other, and which cannot begin."""
    paces: dict[str, Pace | str] = {}
    total, refused = 0.0, []
    for job in jobs:
        kind = job.config.replace(**FREE).digest
        if kind not in paces:
            try:
                paces[kind] = _pace(job.config, prepare.load_data(job.config))
            except RunError as error:
                paces[kind] = str(error)
        pace = paces[kind]
        if isinstance(pace, str):
            refused.append(f"cannot run {job.path.name}: {pace}")
        else:
            total += _rest(job.config, pace, len(RunDirectory(job.path).records()))
    cores = os.cpu_count() or 1
    processes = arguments.jobs if arguments.jobs > 1 else arguments.workers or cores
    print(
        f"{len(jobs)} runs are missing: about {clock(total)} one client after the other, "
        f"{clock(total / min(processes, cores))} in {processes} processes"
    )
    print(*refused, sep="\n", end="\n" if refused else "")
    measured = [experiment.name for experiment, _ in chosen if experiment.measure]
    if measured:
        print(f"not counted: what {', '.join(measured)} measure besides")
