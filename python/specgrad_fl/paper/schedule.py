"""Which runs are missing, who plays them, and how far they are."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from specgrad_fl import fleet
from specgrad_fl.errors import RunError
from specgrad_fl.fleet import Job
from specgrad_fl.paper.model import Cell
from specgrad_fl.progress import clock
from specgrad_fl.runs import Record, RunDirectory


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
    configs = [
        (place, config.replace(data_root=data_root, workers=workers or config.workers))
        for cell in cells
        for place, config in enumerate(cell.configs())
    ]
    ordered = sorted(configs, key=lambda entry: entry[0])
    return fleet.unique([Job.of(config, folder) for _, config in ordered])


def shard(jobs: Sequence[Job], part: int, parts: int) -> list[Job]:
    """Every n-th job, so that long and short ones spread evenly."""
    return list(jobs[part - 1 :: parts])


def missing(jobs: Sequence[Job]) -> list[Job]:
    """Jobs with something left to run."""
    return [job for job in jobs if fleet.stored_outcome(job) is None]


class Progress:
    """One live line on a terminal, a line of JSON for each finished run elsewhere."""

    def __init__(self, jobs: Sequence[Job], quiet: bool) -> None:
        self._quiet = quiet
        self._runs = len(jobs)
        self._done_runs = 0
        self._left = sum(job.config.rounds - len(RunDirectory(job.path).records()) for job in jobs)
        self._played = 0
        self._lock = threading.Lock()
        self._begun = time.perf_counter()

    @property
    def seconds_left(self) -> float:
        """By the pace so far, all processes together."""
        elapsed = time.perf_counter() - self._begun
        return elapsed / max(self._played, 1) * self._left

    def __call__(self, job: Job, record: Record) -> None:
        with self._lock:
            self._count(job, record)

    def _count(self, job: Job, record: Record) -> None:
        self._played += 1
        self._left -= 1
        ended = record["round"] == job.config.rounds
        self._done_runs += ended
        if self._quiet:
            return
        if sys.stderr.isatty():
            accuracy = record.get("test_accuracy")
            score = "" if accuracy is None else f"  accuracy {accuracy:.1%}"
            sys.stderr.write(
                f"\r\x1b[2K[{self._done_runs}/{self._runs} runs]  {job.path.name}  round "
                f"{record['round']}/{job.config.rounds}{score}  left {clock(self.seconds_left)}"
            )
            sys.stderr.flush()
        elif ended:
            facts = {
                "run": job.path.name,
                "runs_done": self._done_runs,
                "of": self._runs,
                "test_accuracy": record.get("test_accuracy"),
                "seconds_left": round(self.seconds_left),
            }
            print(json.dumps(facts), flush=True)

    def end(self) -> None:
        """Leave the live line."""
        if not self._quiet and sys.stderr.isatty() and self._played:
            sys.stderr.write("\n")
