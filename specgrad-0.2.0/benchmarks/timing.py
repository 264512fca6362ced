"""Timing of several contenders in turn, so that a busy moment of the machine meets all of them."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Effort:
    """Effort of one comparison: ``seconds`` a contender, within the counts given."""

    seconds: float
    fewest: int = 3
    most: int = 2000

    def count(self, seconds_a_call: float) -> int:
        """Calls of a contender that takes so long; one shows how slow the slowest are.

        >>> Effort(seconds=1.0).count(0.01), Effort(seconds=1.0).count(0.7)
        (100, 3)
        >>> Effort(seconds=1.0).count(5.0)
        1
        """
        if seconds_a_call > 2 * self.seconds:
            return 1
        return min(max(round(self.seconds / seconds_a_call), self.fewest), self.most)


@dataclass(frozen=True)
class Summary:
    """Seconds of one contender's calls.

    >>> Summary.of([3.0, 1.0, 2.0])
    Summary(median=2.0, q1=1.5, q3=2.5, minimum=1.0, rounds=3)
    """

    median: float
    q1: float
    q3: float
    minimum: float
    rounds: int

    @staticmethod
    def of(samples: list[float]) -> Summary:
        """Median, quartiles and minimum of at least one sample."""
        if len(samples) == 1:
            return Summary(samples[0], samples[0], samples[0], samples[0], 1)
        q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
        return Summary(median, q1, q3, min(samples), len(samples))


@contextmanager
def quiet_process(threads: int) -> Iterator[None]:
    """PyTorch on ``threads`` threads and no garbage collection inside the block."""
    before = torch.get_num_threads()
    collecting = gc.isenabled()
    torch.set_num_threads(threads)
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        torch.set_num_threads(before)


def timed(call: Call) -> float:
    """Seconds of one call."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) * 1e-9


def time_in_turn(
    calls: Mapping[str, Call],
    effort: Effort,
    prepare: Call = lambda: None,
    first_calls: Mapping[str, float] | None = None,
) -> dict[str, Summary]:
    """Time single calls of all contenders, shuffled over the whole time of the measurement.

    A slow contender is called less often than a fast one, but not at another time of day.
    ``prepare`` runs before every call and is not timed: it gives every contender the same
    fresh gradients, as a backward pass would leave them. ``first_calls`` are the seconds of
    calls already made, which warmed up what takes long.
    """
    schedule = []
    for name, call in calls.items():
        warm_up = [first_calls[name]] if first_calls else []
        while not warm_up or (len(warm_up) < 5 and sum(warm_up) < effort.seconds / 2):
            prepare()
            warm_up.append(timed(call))
        schedule += [name] * effort.count(min(warm_up))
    random.Random(0).shuffle(schedule)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name in schedule:
        prepare()
        samples[name].append(timed(calls[name]))
    return {name: Summary.of(values) for name, values in samples.items()}
