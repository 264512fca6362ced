"""Positive statements of our own, and which of them survive Holm's correction for their number.

An interval of 95 % misses one time in twenty; of thirty statements, each judged by its own
interval, one or two would be wrong by chance. Holm's step-down method bounds the chance that any
of the surviving ones is wrong.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtr

from specgrad_study.intervals import LEVEL, paired_sums
from specgrad_study.paper.claims import LEAST_SEEDS
from specgrad_study.paper.ours import FFT, HELD_OUT, MAIN, NO_NORMS, best

# experiment, row, column
Where = tuple[str, str, str]
Values = Mapping[Where, Mapping[int, float]]
Terms = tuple[tuple[float, Where], ...]

ALIKE, ONE_PLACE, KERNEL = "CIFAR-10, alpha 100", "CIFAR-10, centralised", "mean of each kernel"


@dataclass(frozen=True)
class Statement:
    """A sentence that holds if the sum of weighted cells is above ``least``."""

    text: str
    terms: Terms
    least: float = 0.0

    def differences(self, values: Values) -> dict[int, float]:
        """The sum for every seed that all its cells have."""
        return paired_sums([(weight, values.get(where, {})) for weight, where in self.terms])


def _apart(higher: str, lower: str, column: str = MAIN, experiment: str = "mechanism") -> Terms:
    return (1, (experiment, higher, column)), (-1, (experiment, lower, column))


def _gain(row: str, column: str = MAIN) -> Terms:
    return _apart(row, "none", column)


def _less(one: Terms, other: Terms) -> Terms:
    return *one, *((-weight, where) for weight, where in other)


def _band(row: str) -> Where:
    return "spectral-bias", row, "full pass"


STATEMENTS = (
    Statement("fft 0.05 improves FedAvg", _gain(FFT)),
    Statement("centralize improves FedAvg", _gain("centralize")),
    Statement("fft 0.002 improves FedAvg", _gain("fft 0.002")),
    Statement("fft 0.005 improves FedAvg", _gain("fft 0.005")),
    Statement("fft 0.01 improves FedAvg", _gain("fft 0.01")),
    Statement("fft 0.2 improves FedAvg", _apart("0.2", "FedAvg", "CIFAR-10", "ratio")),
    Statement("centralize then fft improves FedAvg", _gain("centralize then fft")),
    Statement("subtracting the mean of each kernel improves FedAvg", _gain(KERNEL)),
    *(
        Statement(f"{name} improves FedAvg", _apart(row, "None (FedAvg)", "CIFAR-10", "strategies"))
        for name, row in (
            ("lap", "Local average pooling detrend"),
            ("gaussian", "Gaussian detrend"),
        )
    ),
    *(
        Statement(
            f"{row} improves FedAvg, each at its own best learning rate",
            _apart(best(row), best("none"), HELD_OUT, "tuned"),
        )
        for row in (FFT, "centralize")
    ),
    *(
        Statement(f"{row} improves FedAvg", _apart(row, "none", experiment="relatives"))
        for row in ("GC-Fed", "SGMS 0.5")
    ),
    Statement(
        "GC-Fed gains more than centralize",
        _apart("GC-Fed", "centralize", experiment="relatives"),
    ),
    Statement("fft 0.05 gains more than centralize", _apart(FFT, "centralize")),
    Statement("centralize gains more than the mean of each kernel", _apart("centralize", KERNEL)),
    Statement("fft 0.05 gains more than fft 0.01", _apart(FFT, "fft 0.01")),
    Statement("fft 0.01 gains more than fft 0.005", _apart("fft 0.01", "fft 0.005")),
    Statement("fft 0.005 gains more than fft 0.002", _apart("fft 0.005", "fft 0.002")),
    Statement("fft 0.05 gains more than fft 0.2", _apart("0.05", "0.2", "CIFAR-10", "ratio")),
    Statement("fft 0.05 gains at alpha 100", _gain(FFT, ALIKE)),
    Statement("centralize gains at alpha 100", _gain("centralize", ALIKE)),
    Statement("fft 0.05 gains more at alpha 100 than at 0.1", _less(_gain(FFT, ALIKE), _gain(FFT))),
    Statement("fft 0.05 gains in centralised training", _gain(FFT, ONE_PLACE)),
    Statement("centralize gains in centralised training", _gain("centralize", ONE_PLACE)),
    Statement("centralize gains without norm layers", _gain("centralize", NO_NORMS)),
    Statement(
        "the mean of each kernel costs accuracy without norm layers",
        _apart("none", KERNEL, NO_NORMS),
    ),
    Statement(
        "fft 0.05 gains more with norm layers than without",
        _less(_gain(FFT), _gain(FFT, NO_NORMS)),
    ),
    *(
        Statement(
            f"along FedAvg's run, steps through {row} meet a less sharp loss",
            _apart("no filter", row, "sharpness"),
        )
        for row in (FFT, "centralize")
    ),
    Statement(
        "the lowest of ten bands has more than a tenth of the disagreement",
        ((1, _band("alpha 0.1: first band, %")),),
        least=10,
    ),
    Statement(
        "most of what skew adds to the disagreement lies in the lowest band",
        ((1, _band("first band, % of the increase")),),
        least=50,
    ),
    Statement(
        "the lowest band's share is larger at alpha 0.1 than at 100",
        ((1, _band("alpha 0.1: first band, %")), (-1, _band("alpha 100: first band, %"))),
    ),
    Statement(
        "of local updates, fft 0.05 removes more of the disagreement than of the mean",
        _apart(
            "alpha 0.1: mean gradient left by fft, order 0123, %",
            "alpha 0.1: disagreement left by fft, order 0123, %",
            "local update",
            "spectral-bias",
        ),
    ),
)


def p_value(differences: Sequence[float], least: float = 0.0) -> float:
    """Two-sided p of Student's test that the mean is ``least``.

    >>> round(p_value([0.8, 0.1, 0.8]), 3)
    0.136
    """
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    t = (statistics.fmean(differences) - least) / error if error else math.inf
    return 2 * float(stdtr(len(differences) - 1, -abs(t)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


@dataclass(frozen=True)
class Corrected:
    """A statement with its differences by seed and its p value, corrected by Holm's method."""

    statement: Statement
    differences: Mapping[int, float]
    p: float

    @property
    def survives(self) -> bool:
        mean = statistics.fmean(self.differences.values())
        return mean > self.statement.least and self.p < 1 - LEVEL


def corrected(values: Values) -> list[Corrected]:
    """Statements whose cells have three seeds or more, the most certain first."""
    found = [(each, each.differences(values)) for each in STATEMENTS]
    known = [(each, by_seed) for each, by_seed in found if len(by_seed) >= LEAST_SEEDS]
    adjusted = holm([p_value(list(by_seed.values()), each.least) for each, by_seed in known])
    together = [Corrected(*pair, p) for pair, p in zip(known, adjusted, strict=True)]
    return sorted(together, key=lambda each: each.p)
