"""What runs say while they work: one live line on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from specgrad_fl.config import Config
from specgrad_fl.records import Record
from specgrad_fl.runs import RunDirectory

if TYPE_CHECKING:
    from specgrad_fl.fleet import Job

SECONDS_BETWEEN_LINES = 10


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3725)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def time_split(record: Record) -> dict[str, float]:
    """Shares of a round: training split into compute and filter by the clients' own time."""
    seconds = record["seconds"]
    total = seconds["round"]
    share = record["filter_share"]
    return {
        "compute": seconds["train"] * (1 - share) / total,
        "filter": seconds["train"] * share / total,
        "aggregate": seconds["aggregate"] / total,
        "evaluate": seconds["evaluate"] / total,
    }


class Terminal:
    """Rewrites one line."""

    def __init__(self, stream: TextIO, label: str = "") -> None:
        self._stream = stream
        self._label = f"{label}  " if label else ""
        self._times: deque[float] = deque(maxlen=20)
        self._last = time.perf_counter()
        self._accuracy = self._best = "-"
        self._best_value = -1.0

    def __call__(self, record: Record, config: Config) -> None:
        now = time.perf_counter()
        self._times.append(now - self._last)
        self._last = now
        if "test_accuracy" in record:
            self._accuracy = f"{record['test_accuracy']:.1%}"
            self._best_value = max(self._best_value, record["test_accuracy"])
            self._best = f"{self._best_value:.1%}"
        each = sum(self._times) / len(self._times)
        left = clock(each * (config.rounds - record["round"]))
        parts = "  ".join(f"{k} {v:.1%}" for k, v in time_split(record).items())
        line = (
            f"{self._label}round {record['round']}/{config.rounds}  accuracy {self._accuracy} "
            f"(best {self._best})  loss {record['train_loss']:.3f}  {each:.2f} s/round  "
            f"left {left}  [{parts}]"
        )
        end = "\n" if record["round"] == config.rounds else ""
        self._stream.write(f"\r\x1b[2K{line}{end}")
        self._stream.flush()


class Lines:
    """One JSON object for each round."""

    def __init__(self, stream: TextIO, label: str = "") -> None:
        self._stream = stream
        self._label = {"run": label} if label else {}

    def __call__(self, record: Record, config: Config) -> None:
        shown = {k: v for k, v in record.items() if k not in ("clients", "time")}
        split = {k: round(v, 4) for k, v in time_split(record).items()}
        self._stream.write(json.dumps({**self._label, **shown, "split": split}) + "\n")
        self._stream.flush()


def watcher(quiet: bool, label: str = "") -> Terminal | Lines | None:
    """The way to report that suits the output; ``None`` for silence."""
    if quiet:
        return None
    if sys.stderr.isatty():
        return Terminal(sys.stderr, label)
    return Lines(sys.stdout, label)


class FleetProgress:
    """Of many runs side by side: all of them in the live line, JSON for each finished run."""

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


class Status:
    """What is being done: a live line on a terminal, a line every few seconds elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._begun = time.perf_counter()
        self._next = 0.0

    def __call__(self, text: str) -> None:
        live = sys.stderr.isatty()
        passed = time.perf_counter() - self._begun
        if self._quiet or (not live and passed < self._next):
            return
        self._next = passed + SECONDS_BETWEEN_LINES
        line = f"{clock(passed)}  {text}"
        sys.stderr.write(f"\r\x1b[2K{line}" if live else f"{line}\n")
        sys.stderr.flush()

    def done(self) -> None:
        """Clear the live line."""
        if not self._quiet and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K")
