"""``specgrad-fl reproduce``: run what is missing, then write the report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specgrad_fl.config import Config, read_toml
from specgrad_fl.errors import RunError, suggest
from specgrad_fl.progress import clock

from specgrad_study import fleet
from specgrad_study.compare import check_measure
from specgrad_study.fleet import Job, Status
from specgrad_study.paper import registry, report, schedule
from specgrad_study.paper.archive import Archive, Earlier
from specgrad_study.paper.experiment import Cell, Context, Experiment, Part, Subject, tuned
from specgrad_study.paper.presets import PRESETS, Preset

Chosen = list[tuple[Experiment, list[Cell]]]


def run(arguments: argparse.Namespace) -> None:
    """The command."""
    preset = _preset(arguments)
    check_measure(arguments.measure)
    folder = arguments.runs or Path("runs") / preset.name
    chosen = _chosen(arguments, preset)
    every = [cell for experiment, cells in chosen for cell in cells if experiment.trained(cell)]
    # side by side, each run has one process
    workers = arguments.workers or (1 if arguments.jobs > 1 else 0)
    jobs = schedule.jobs_of(every, folder, arguments.data_root, workers)
    machine, machines = schedule.parse_shard(arguments.shard)
    archive = Archive(folder, tuple(Earlier.read(path) for path in arguments.with_results))
    missing = [
        job
        for job in fleet.missing(schedule.shard(jobs, machine, machines))
        if archive.finished(job.config) is None
    ]
    if arguments.dry_run:
        _estimate(missing, chosen, arguments)
        return
    refusals: list[str] = []
    if not arguments.report_only:
        status = Status(arguments.quiet)
        context = Context(preset, folder, status, arguments.data_root, workers)
        outcomes = fleet.play_shown(missing, arguments.jobs, arguments.quiet)
        # divergence is a result, not a refusal
        refused = [outcome for outcome in outcomes if outcome.status == fleet.REFUSED]
        refusals = [f"{outcome.job.path.name}: {outcome.reason}" for outcome in refused]
        # what is measured once is measured by the first of several machines
        for experiment, cells in chosen if machine == 1 else ():
            if experiment.measure is not None:
                try:
                    experiment.measure(cells, context)
                except RunError as error:
                    refusals.append(f"{experiment.name}: {error}")
        status.done()
    subject = Subject(preset, archive, arguments.measure, _again(arguments))
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


def _estimate(jobs: Sequence[Job], chosen: Chosen, arguments: argparse.Namespace) -> None:
    total, refused = schedule.estimate(jobs)
    cores = os.cpu_count() or 1
    processes = arguments.jobs if arguments.jobs > 1 else arguments.workers or cores
    print(
        f"{len(jobs)} runs are missing: about {clock(total)} one client after the other, "
        f"{clock(total / min(processes, cores))} in {processes} processes"
    )
    for name, reason in refused.items():
        print(f"cannot run {name}: {reason}")
    measured = [experiment.name for experiment, _ in chosen if experiment.measure]
    if measured:
        print(f"not counted: what {', '.join(measured)} measure besides")
