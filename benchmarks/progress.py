"""One line that says what is measured now and how long the rest will take."""

from __future__ import annotations

import sys
import time
from typing import TextIO


def duration(seconds: float) -> str:
    """Minutes and seconds.

    >>> duration(75.2)
    '1:15'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


class Progress:
    """Guesses of all cases, corrected by how wrong they were for the ones that are done."""

    def __init__(self, guesses: list[float], stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.guesses = guesses
        self.done = 0
        self.start = time.perf_counter()

    def left(self) -> float:
        """Seconds until the end, as far as one can tell."""
        elapsed = time.perf_counter() - self.start
        guessed = sum(self.guesses[: self.done])
        pace = elapsed / guessed if guessed else 1.0
        return pace * sum(self.guesses[self.done :])

    def begin(self, title: str) -> None:
        """Announce the next case."""
        line = f"[{self.done + 1}/{len(self.guesses)}] {title}, about {duration(self.left())} left"
        if self.stream.isatty():
            self.stream.write(f"\r\x1b[K{line}")
        else:
            self.stream.write(line + "\n")
        self.stream.flush()
        self.done += 1

    def end(self) -> None:
        """Leave the line."""
        if self.stream.isatty():
            self.stream.write("\r\x1b[K")
            self.stream.flush()
