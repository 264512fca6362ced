"""Play missing runs, here or in several processes.

A run is found by the name of its configuration, so that whoever asks for the same settings gets
the same run.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specgrad_data import Dataset
from specgrad_fl import pool, prepare, storage, training
from specgrad_fl.config import EXECUTION_KEYS, Config
from specgrad_fl.engine import Engine
from specgrad_fl.errors import Diverged, RunError
from specgrad_fl.partition import Partition
from specgrad_fl.pool import PROGRESS, Message, Pool, WorkerDied
from specgrad_fl.progress import SECONDS_BETWEEN_LINES, Lines, Watcher, clock, rewrite
from specgrad_fl.records import Record
from specgrad_fl.runs import RunDirectory, run_name

FINISHED, DIVERGED, REFUSED = "finished", "diverged", "refused"
FAILURE = "diverged.txt"


@dataclass(frozen=True)
class Job:
    """A configuration and the directory of its run."""

    config: Config
    path: Path

    @staticmethod
    def of(config: Config, folder: Path) -> Job:
        return Job(config, folder / run_name(config))


@dataclass(frozen=True)
class Outcome:
    """The end of a job: finished, diverged (always will), or refused (may succeed later)."""

    job: Job
    status: str
    reason: str = ""
    trace: str = ""


Listener = Callable[[Job, Record], None]


def stored_outcome(job: Job) -> Outcome | None:
    """The outcome of an earlier run; ``None`` while there is something to run."""
    run = RunDirectory(job.path)
    check_holds(run, job.config)
    if run.finished:
        return Outcome(job, FINISHED)
    failure = job.path / FAILURE
    if failure.is_file():
        return Outcome(job, DIVERGED, failure.read_text(encoding="utf-8").strip())
    return None


def check_holds(run: RunDirectory, config: Config) -> None:
    """Refuse a folder with the name of a configuration that holds a run of another one."""
    if not run.exists:
        return
    stored = run.config()
    resolved = {name: getattr(stored, name) for name in ("clients", "eval_every", "eval_tail")}
    asked = config.replace(**resolved)
    if stored.digest != asked.digest:
        decisive = set(stored.as_dict()) - EXECUTION_KEYS
        name = min(n for n in decisive if getattr(stored, n) != getattr(asked, n))
        raise RunError(
            f"{run.path} holds another run than its name says: {name} is "
            f"{getattr(stored, name)!r}, and {getattr(asked, name)!r} was asked for; move it away "
            "or choose another --out"
        )


def complete(job: Job, watch: Watcher) -> RunDirectory:
    """One run: found finished, continued, or played from the beginning."""
    run = RunDirectory(job.path)
    if run.finished:
        return run
    if run.exists:
        changes = {"workers": job.config.workers, "data_root": job.config.data_root}
        return training.resume(run.path, watch, changes, job.config.own_code.values())
    return training.train(job.config, run.path, watch)


def play_one(job: Job, watch: Watcher) -> Outcome:
    """As :func:`complete`, but an error is an outcome, so that other runs go on."""
    known = stored_outcome(job)
    if known is not None:
        return known
    try:
        complete(job, watch)
    except Diverged as error:
        storage.write_text(job.path / FAILURE, f"{error}\n")
        return Outcome(job, DIVERGED, str(error))
    except RunError as error:
        return Outcome(job, REFUSED, str(error), error.trace)
    return Outcome(job, FINISHED)


def missing(jobs: Sequence[Job]) -> list[Job]:
    """Jobs with something left to run."""
    return [job for job in jobs if stored_outcome(job) is None]


def play(jobs: Sequence[Job], processes: int, heard: Listener) -> list[Outcome]:
    """All jobs, in ``processes`` processes; outcomes in the order of the jobs."""

    def watch(job: Job) -> Watcher:
        return lambda record, _: heard(job, record)

    if processes <= 1:
        return [play_one(job, watch(job)) for job in jobs]
    pool = Pool("specgrad_study.fleet", min(processes, len(jobs)), threads=1)
    orders = [{"config": job.config.as_dict(), "path": str(job.path)} for job in jobs]
    outcomes: dict[int, Outcome] = {}

    def listen(index: int, _: int, reply: Message) -> None:
        if PROGRESS in reply:
            heard(jobs[index], reply[PROGRESS])
        else:
            outcomes[index] = Outcome(jobs[index], *reply["value"])

    try:
        pool.start()
        pool.spread(orders, listen)
    except WorkerDied as death:
        raise RunError(
            f"the process that played {jobs[death.order].path.name} ended with code {death.code}; "
            "its last round is stored, so give the same command again, with fewer --jobs if memory "
            "is short"
        ) from death
    finally:
        pool.close()
    return [outcomes[index] for index in range(len(jobs))]


def _answer(order: Message, say: Callable[[Message], None]) -> tuple[str, str, str]:
    """Worker: play one job, with its rounds as partial replies."""
    job = Job(Config(**order["config"]), Path(order["path"]))
    outcome = play_one(job, lambda record, _: say(record))
    return outcome.status, outcome.reason, outcome.trace


class _Line:
    """A live line on a terminal, a line every few seconds elsewhere."""

    def __init__(self) -> None:
        self._live, self._begun, self._due = sys.stderr.isatty(), time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return time.perf_counter() - self._begun

    def show(self, *parts: str, always: bool = False) -> None:
        """Show these parts; ``always`` also in a log that got a line a moment ago."""
        if self._live:
            rewrite(sys.stderr, *parts)
        elif always or self.seconds >= self._due:
            self._due = self.seconds + SECONDS_BETWEEN_LINES
            print("  ".join(parts), file=sys.stderr, flush=True)

    def end(self, text: str) -> None:
        """Write ``text`` behind the live line."""
        if self._live:
            sys.stderr.write(text)


class _Progress:
    """Progress of many runs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._runs = len(jobs)
        self._done_runs = 0
        self._left = sum(job.config.rounds - len(RunDirectory(job.path).records()) for job in jobs)
        self.played = 0
        self._lock = threading.Lock()
        self.line = _Line()

    def __call__(self, job: Job, record: Record) -> None:
        with self._lock:
            self.played += 1
            self._left -= 1
            ended = record["round"] == job.config.rounds
            self._done_runs += ended
            accuracy = record.get("test_accuracy")
            score = "" if accuracy is None else f"  accuracy {accuracy:.1%}"
            left = self.line.seconds / self.played * self._left  # of all processes together
            self.line.show(
                f"[{self._done_runs}/{self._runs} runs]",
                f"left {clock(left)}",
                f"round {record['round']}/{job.config.rounds}{score}",
                job.path.name,
                always=ended,
            )


def play_shown(
    jobs: Sequence[Job], processes: int, quiet: bool, as_json: bool = False
) -> list[Outcome]:
    """As :func:`play`, with progress: none, a JSON object for each round, or for people."""
    if quiet:
        return play(jobs, processes, lambda job, record: None)
    if as_json:
        lines = {job.path: Lines(sys.stdout, job.path.name) for job in jobs}
        return play(jobs, processes, lambda job, record: lines[job.path](record, job.config))
    progress = _Progress(missing(jobs))
    try:
        return play(jobs, processes, progress)
    finally:
        if progress.played:
            progress.line.end("\n")


@contextmanager
def trial(config: Config, dataset: Dataset, partition: Partition) -> Iterator[Engine]:
    """Engine on a temporary directory."""
    with tempfile.TemporaryDirectory() as folder:
        resolved = prepare.resolve(config, dataset, partition)
        tried = Engine(resolved, dataset, partition, RunDirectory(Path(folder))).start()
        try:
            yield tried
        finally:
            tried.close()


@contextmanager
def status(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Report the current step."""
    line = _Line()
    try:
        yield lambda text: None if quiet else line.show(f"{clock(line.seconds)}  {text}")
    finally:
        if not quiet:
            line.end("\r\x1b[2K")


if __name__ == "__main__":
    sys.path.insert(0, "")
    os.dup2(2, 1)  # what a user's own method or model prints is no answer
    pool.serve(int(sys.argv[1]), _answer)
