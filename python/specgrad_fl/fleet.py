"""Many runs: those that are missing are played, here or in several processes side by side.

A run is found by the name of its configuration, so that whoever asks for the same settings gets
the same run. The processes take one job after the other as lines of JSON.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgrad_fl import atomic, training
from specgrad_fl.config import Config
from specgrad_fl.engine import Watcher
from specgrad_fl.errors import Diverged, RunError
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
    """How a job ended: finished, diverged (always will), or refused (may succeed later)."""

    job: Job
    status: str
    reason: str = ""


Listener = Callable[[Job, Record], None]


def stored_outcome(job: Job) -> Outcome | None:
    """What is known without running anything; ``None`` while there is something to run."""
    run = RunDirectory(job.path)
    if run.finished:
        return Outcome(job, FINISHED)
    failure = job.path / FAILURE
    if failure.is_file():
        return Outcome(job, DIVERGED, failure.read_text(encoding="utf-8").strip())
    return None


def complete(job: Job, watch: Watcher) -> RunDirectory:
    """One run: found finished, continued, or played from the beginning."""
    run = RunDirectory(job.path)
    if run.finished:
        return run
    if run.exists:
        changes = {"workers": job.config.workers, "data_root": job.config.data_root}
        return training.resume(run.path, watch, changes)
    return training.train(job.config, run.path, watch)


def play_one(job: Job, watch: Watcher) -> Outcome:
    """As :func:`complete`, but a mistake in one run does not end the others."""
    known = stored_outcome(job)
    if known is not None:
        return known
    try:
        complete(job, watch)
    except Diverged as error:
        atomic.write_text(job.path / FAILURE, f"{error}\n")
        return Outcome(job, DIVERGED, str(error))
    except RunError as error:
        return Outcome(job, REFUSED, str(error))
    return Outcome(job, FINISHED)


def missing(jobs: Sequence[Job]) -> list[Job]:
    """Jobs with something left to run."""
    return [job for job in jobs if stored_outcome(job) is None]


def unique(jobs: Sequence[Job]) -> list[Job]:
    """Each run once, in the order of its first appearance."""
    return list({job.path: job for job in jobs}.values())


def _told(job: Job, heard: Listener) -> Watcher:
    return lambda record, config: heard(job, record)


def play(jobs: Sequence[Job], processes: int, heard: Listener) -> list[Outcome]:
    """All jobs, in ``processes`` processes; outcomes in the order of the jobs."""
    if processes <= 1:
        return [play_one(job, _told(job, heard)) for job in jobs]
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(jobs)):
        waiting.put(number)
    outcomes: dict[int, Outcome] = {}
    crews = [_Crew(jobs, waiting, outcomes, heard) for _ in range(min(processes, len(jobs)))]
    try:
        for crew in crews:
            crew.start()
        for crew in crews:
            crew.join()
    except BaseException:
        for crew in crews:
            crew.stop()
        raise
    for crew in crews:
        if crew.failure is not None:
            raise crew.failure
    return [outcomes[number] for number in range(len(jobs))]


class _Crew(threading.Thread):
    """A child process, and the thread that hands it jobs."""

    def __init__(
        self,
        jobs: Sequence[Job],
        waiting: queue.SimpleQueue[int],
        outcomes: dict[int, Outcome],
        heard: Listener,
    ) -> None:
        super().__init__(daemon=True)
        self._jobs, self._waiting = jobs, waiting
        self._outcomes, self._heard = outcomes, heard
        self.failure: RunError | None = None
        self._child = subprocess.Popen(
            [sys.executable, "-m", "specgrad_fl.fleet"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which stops the others
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self) -> None:
        assert self._child.stdin is not None
        while True:
            try:
                number = self._waiting.get_nowait()
            except queue.Empty:
                self._child.stdin.close()
                self._child.wait()
                return
            try:
                self._outcomes[number] = self._order(self._jobs[number])
            except RunError as error:
                self.failure = error
                return

    def _order(self, job: Job) -> Outcome:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        order = {"config": job.config.as_dict(), "path": str(job.path)}
        try:
            self._child.stdin.write(json.dumps(order) + "\n")
            self._child.stdin.flush()
        except OSError as error:
            raise self._died(job) from error
        for line in self._child.stdout:
            message = json.loads(line)
            if "status" in message:
                return Outcome(job, message["status"], message["reason"])
            self._heard(job, message)
        raise self._died(job)

    def _died(self, job: Job) -> RunError:
        return RunError(
            f"the process that played {job.path.name} ended with code {self._child.wait()}; its "
            "last round is stored, so give the same command again, with fewer --jobs if memory "
            "is short"
        )

    def stop(self) -> None:
        self._child.terminate()
        self._child.wait()


def serve() -> None:
    """The child's side: a job from each line of the input, records and the outcome as output."""
    sys.path.insert(0, "")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a user's own method or model prints is no answer

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    for line in sys.stdin:
        order = json.loads(line)
        job = Job(Config(**order["config"]), Path(order["path"]))
        outcome = play_one(job, lambda record, _: say(record))
        say({"status": outcome.status, "reason": outcome.reason})


if __name__ == "__main__":
    serve()
