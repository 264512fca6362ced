"""One line that says what is measured now and how long the rest will take."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from specgrad_fl.progress import clock, rewrite


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
        line = f"[{self.done + 1}/{len(self.guesses)}] {title}, about {clock(self.left())} left"
        if self.stream.isatty():
            rewrite(self.stream, line)
        else:
            print(line, file=self.stream, flush=True)
        self.done += 1

    def end(self) -> None:
        """Leave the line."""
        if self.stream.isatty():
            rewrite(self.stream, "")
