"""Means of differences that are paired by seed, with intervals of Student's distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

LEVEL = 0.95


def paired_sums(terms: Sequence[tuple[float, Mapping[int, float]]]) -> dict[int, float]:
    """Sum weighted values seed by seed, for the seeds that all terms have.

    >>> paired_sums([(1, {0: 3.0, 1: 4.0}), (-1, {1: 1.5, 2: 0.0})])
    {1: 2.5}
    """
    seeds = set.intersection(*(set(values) for _, values in terms))
    return {seed: math.fsum(w * values[seed] for w, values in terms) for seed in sorted(seeds)}


@dataclass(frozen=True)
class Interval:
    """The mean of paired differences and half the width of its interval; none for one seed.

    >>> str(Interval.of({0: 0.8, 1: 0.1, 2: 0.8}))
    '+0.57 [-0.44, +1.57] (3)'
    >>> str(Interval.of({0: 0.8}))
    '+0.80 (1)'
    """

    mean: float
    half: float | None
    seeds: int

    @staticmethod
    def of(differences: Mapping[int, float], level: float = LEVEL) -> Interval:
        """From one difference for each seed."""
        each, count = list(differences.values()), len(differences)
        half = None
        if count > 1:
            t = float(stdtrit(count - 1, (1 + level) / 2))
            half = t * statistics.stdev(each) / math.sqrt(count)
        return Interval(statistics.fmean(each), half, count)

    @property
    def ends(self) -> tuple[float, float] | None:
        return None if self.half is None else (self.mean - self.half, self.mean + self.half)

    @property
    def text(self) -> str:
        """Mean and interval, without the number of seeds."""
        ends = "" if self.ends is None else f" [{self.ends[0]:+.2f}, {self.ends[1]:+.2f}]"
        return f"{self.mean:+.2f}{ends}"

    def __str__(self) -> str:
        return f"{self.text} ({self.seeds})"

    def as_dict(self) -> dict[str, float | int | None]:
        """Mean, ends and seeds for JSON."""
        low, high = self.ends or (None, None)
        return {"mean": self.mean, "low": low, "high": high, "seeds": self.seeds}
