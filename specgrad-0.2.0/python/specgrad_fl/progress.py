"""Progress of runs: a live line on a terminal, lines in a log, JSON on request."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from specgrad_fl.config import Config
from specgrad_fl.records import Record

Watcher = Callable[[Record, Config], None]
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
    seconds, filtered = record["seconds"], record["filter_share"]
    train, aggregate, evaluate = (
        seconds[part] / seconds["round"] for part in ("train", "aggregate", "evaluate")
    )
    shares = {"compute": train * (1 - filtered), "filter": train * filtered}
    return shares | {"aggregate": aggregate, "evaluate": evaluate}


def columns(stream: TextIO) -> int:
    """The width of a terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # no terminal
        return shutil.get_terminal_size().columns


def rewrite(stream: TextIO, *parts: str, end: str = "") -> None:
    """Replace the live line; the last parts are left out where the terminal is too narrow."""
    room = columns(stream) - 1
    line = parts[0]
    for part in parts[1:]:
        if len(line) + len(part) + 2 > room:
            break
        line += f"  {part}"
    stream.write(f"\r\x1b[2K{line[:room]}{end}")
    stream.flush()


class Terminal:
    """Rewrites one line."""

    def __init__(self, stream: TextIO, label: str = "") -> None:
        self._stream, self._label = stream, f"{label}  " if label else ""
        self._ends = deque([time.perf_counter()], maxlen=21)
        self._accuracy = "- (best -)"
        self._best = -1.0

    def __call__(self, record: Record, config: Config) -> None:
        self._ends.append(time.perf_counter())
        accuracy = _accuracy(record)
        if accuracy is not None:
            self._best = max(self._best, accuracy)
            self._accuracy = f"{accuracy:.1%} (best {self._best:.1%})"
        each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        left = clock(each * (config.rounds - record["round"]))
        split = "  ".join(f"{k} {v:.1%}" for k, v in time_split(record).items())
        rewrite(
            self._stream,
            f"{self._label}round {record['round']}/{config.rounds}",
            f"accuracy {self._accuracy}",
            f"left {left}",
            *_left_out(record),
            f"loss {record['train_loss']:.3f}",
            f"{each:.2f} s/round",
            f"[{split}]",
            end="\n" if record["round"] == config.rounds else "",
        )


class Plain:
    """A line every few seconds, for a log file."""

    def __init__(self, stream: TextIO, label: str = "") -> None:
        self._stream, self._label = stream, f"{label}  " if label else ""
        self._next = 0.0

    def __call__(self, record: Record, config: Config) -> None:
        last = record["round"] == config.rounds
        if time.monotonic() < self._next and not last:
            return
        self._next = time.monotonic() + SECONDS_BETWEEN_LINES
        accuracy = _accuracy(record)
        shown = "" if accuracy is None else f"  accuracy {accuracy:.1%}"
        shown = "  ".join([shown, *_left_out(record)])
        done = f"{self._label}round {record['round']}/{config.rounds}"
        print(f"{done}  loss {record['train_loss']:.3f}{shown}", file=self._stream, flush=True)


def _accuracy(record: Record) -> float | None:
    """Accuracy on held-out samples where there are any, else on the test set."""
    return record.get("validation_accuracy", record.get("test_accuracy"))


def _left_out(record: Record) -> list[str]:
    """Number of clients that were left out of a round; the record has the reasons."""
    clients = record.get("left_out")
    return [f"clients left out {len(clients)}"] if clients else []


class Lines:
    """One JSON object for each round."""

    def __init__(self, stream: TextIO, label: str = "") -> None:
        self._stream, self._label = stream, {"run": label} if label else {}

    def __call__(self, record: Record, config: Config) -> None:
        shown = {k: v for k, v in record.items() if k not in ("clients", "time")}
        split = {k: round(v, 4) for k, v in time_split(record).items()}
        line = json.dumps({**self._label, **shown, "split": split})
        print(line, file=self._stream, flush=True)


def silent(record: Record, config: Config) -> None:
    """Watcher without output."""


def watcher(quiet: bool, label: str = "", as_json: bool = False) -> Watcher:
    """The watcher that suits the output."""
    if quiet:
        return silent
    if as_json:
        return Lines(sys.stdout, label)
    return Terminal(sys.stderr, label) if sys.stderr.isatty() else Plain(sys.stderr, label)
