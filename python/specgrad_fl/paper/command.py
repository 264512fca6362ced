"""``specgrad-fl reproduce``: run what is missing, then write the report."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

DESCRIPTION = """Run the paper's experiments and set its numbers beside yours.

Only what is missing is run. Interrupted? The same command goes on where it stopped.

experiments:
  table1, table2, near-iid, feature-shift, femnist, settings, curves    methods compared
  strategies, layers, orders, ratio, centralised                        ablations of the filter
  spectral-bias, cka                                                    how clients drift apart
  time                                                                  seconds and memory

examples:
  specgrad-fl reproduce strategies --preset cpu --dry-run      how long would it take
  specgrad-fl reproduce strategies orders --preset cpu --jobs 2
  specgrad-fl reproduce all --preset paper --shard 2/4         one of four machines
  specgrad-fl reproduce all --preset cpu --report-only         from the runs there are"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="experiments, or all")
    parser.add_argument("--preset", default="cpu", help="paper, cpu or smoke [cpu]")
    parser.add_argument("--runs", type=Path, help="folder of the runs [runs/PRESET]")
    parser.add_argument("--out", type=Path, help="folder of the report [RUNS/report]")
    parser.add_argument("--seeds", help="seeds of every cell, such as 0,1,2 [by preset]")
    parser.add_argument("--measure", default="last10", help="last10, final or best [last10]")
    parser.add_argument(
        "--tuned", type=Path, action="append", default=[], metavar="FILE",
        help="result of `tune`, reused with and without the filter; may be repeated",
    )  # fmt: skip
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="play the I-th of N parts")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side [1]")
    parser.add_argument("--workers", type=int, default=0, help="client processes of each run")
    parser.add_argument("--device", default="", help="torch device [by preset]")
    parser.add_argument("--data-root", default="", help="folder of the data sets")
    parser.add_argument("--dry-run", action="store_true", help="only estimate the time")
    parser.add_argument("--report-only", action="store_true", help="run nothing")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(arguments: argparse.Namespace) -> None:
    """The command."""
    from dataclasses import replace

    from specgrad_fl.config import Config, read_toml
    from specgrad_fl.errors import RunError, suggest
    from specgrad_fl.paper import registry, report, schedule
    from specgrad_fl.paper.model import MEASURES, Cell, Context, tuned
    from specgrad_fl.paper.presets import PRESETS

    for value, known, what in (
        (arguments.preset, PRESETS, "preset"),
        (arguments.measure, MEASURES, "measure"),
    ):
        if value not in known:
            raise RunError(f"there is no {what} {value!r}; {suggest(value, known)}")
    preset = PRESETS[arguments.preset]()
    if arguments.device:
        preset = replace(preset, base=preset.base.replace(device=arguments.device))
    folder = arguments.runs or Path("runs") / preset.name
    files = [Config(**read_toml(path)) for path in arguments.tuned]
    chosen = []
    for experiment in registry.find(arguments.names):
        cells = tuned(experiment.cells(preset), files)
        if arguments.seeds:
            seeds = parse_seeds(arguments.seeds)
            cells = [Cell(cell.row, cell.column, cell.config, seeds) for cell in cells]
        chosen.append((experiment, cells))
    every = [cell for experiment, cells in chosen for cell in cells if experiment.trained(cell)]
    jobs = schedule.jobs_of(every, folder, arguments.data_root, _workers(arguments))
    machine, machines = schedule.parse_shard(arguments.shard)
    jobs = schedule.shard(jobs, machine, machines)
    if arguments.dry_run:
        _estimate(schedule.missing(jobs), arguments)
        measured = [experiment.name for experiment, _ in chosen if experiment.measure]
        if measured:
            print(f"not counted: what {', '.join(measured)} measure besides")
        return
    refusals: list[str] = []
    if not arguments.report_only:
        say = _teller(arguments.quiet)
        context = Context(preset, folder, say, arguments.data_root, _workers(arguments))
        try:
            refusals = _play(schedule.missing(jobs), arguments)
            for experiment, cells in chosen:
                # what is measured once is measured by the first of several machines
                if experiment.measure is not None and machine == 1:
                    experiment.measure(cells, context)
        except KeyboardInterrupt:
            print("\nevery finished round is stored; the same command goes on", file=sys.stderr)
            raise
    subject = report.Subject(preset, folder, arguments.measure, _again(arguments))
    parts = [report.collect(experiment, cells, subject) for experiment, cells in chosen]
    print(report.write(parts, subject, arguments.out or folder / "report"))
    if refusals:
        raise RunError(f"{len(refusals)} runs did not finish; the first: {refusals[0]}")


def parse_seeds(text: str) -> tuple[int, ...]:
    """``0,1`` as numbers."""
    from specgrad_fl.errors import RunError

    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RunError(f"seeds is {text!r}; write whole numbers such as 0,1,2") from None


def _workers(arguments: argparse.Namespace) -> int:
    """Side by side, each run has one process."""
    return arguments.workers or (1 if arguments.jobs > 1 else 0)


def _again(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The command that makes the same report, wherever its folders are."""
    words = [*arguments.names, f"--preset={arguments.preset}"]
    words += [f"--seeds={arguments.seeds}"] if arguments.seeds else []
    words += [f"--measure={arguments.measure}"] if arguments.measure != "last10" else []
    words += [f"--tuned={path.name}" for path in arguments.tuned]
    return tuple(words)


def _teller(quiet: bool) -> Callable[[str], None]:
    """What is being measured, on standard error."""

    def say(text: str) -> None:
        if not quiet:
            live = sys.stderr.isatty()
            sys.stderr.write(f"\r\x1b[2K{text}" if live else f"{text}\n")
            sys.stderr.flush()

    return say


def _estimate(jobs: list, arguments: argparse.Namespace) -> None:
    from specgrad_fl.paper.estimate import estimate
    from specgrad_fl.progress import clock

    found = estimate(jobs)
    processes = max(1, arguments.jobs)
    if processes == 1:
        processes = arguments.workers or os.cpu_count() or 1
    together = found.total / min(processes, os.cpu_count() or 1)
    print(
        f"{len(jobs)} runs are missing: about {clock(found.total)} one client after the other, "
        f"{clock(together)} in {processes} processes"
    )
    for job, reason in found.refused:
        print(f"cannot run {job.path.name}: {reason}")


def _play(jobs: list, arguments: argparse.Namespace) -> list[str]:
    """The runs; why some did not finish. Divergence is a result, not a refusal."""
    from specgrad_fl import fleet
    from specgrad_fl.paper.schedule import Progress

    progress = Progress(jobs, arguments.quiet)
    try:
        outcomes = fleet.play(jobs, arguments.jobs, progress)
    finally:
        progress.end()
    return [f"{o.job.path.name}: {o.reason}" for o in outcomes if o.status == fleet.REFUSED]
