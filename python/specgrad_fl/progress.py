"""What a run says while it works: one live line on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from typing import Any, TextIO

from specgrad_fl.config import Config

Record = dict[str, Any]


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
