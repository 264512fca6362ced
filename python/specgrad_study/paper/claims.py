"""The paper's claims as inequalities between cells, and the rule that judges them.

The rule. A claim is a list of contrasts: weighted sums of a table's rows that should be positive,
or should lie within a margin. Each contrast is averaged over the n seeds that all its rows have.
It is decided when it is farther from the border than ``t s sqrt(sum of squared weights / n)``,
with t the 97.5 % point of Student's distribution for as many degrees of freedom as s has.
Runs of one seed share partition, initial weights and the draw of clients, and what they share
cancels in a contrast; so s is the standard deviation over seeds that is left when every cell's
mean and every seed's common effect are taken out, pooled over all cells with two seeds or more.
A claim is supported when all its contrasts are decided in its favour, contradicted when
at least one is decided against it, and out of reach otherwise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specgrad_study.paper.numbers import Place

SUPPORTS, CONTRADICTS, OUT_OF_REACH = "supports", "contradicts", "cannot reach"
RULE = (
    "Rule of the verdicts: a claim is a list of differences between cells that should be positive "
    "(or stay within a margin). Each is averaged over the n seeds that its cells share, and "
    "counts as decided when it is farther from the border than t s sqrt(sum of squared weights / "
    "n). Runs of one seed share partition, initial weights and the draw of clients, which cancels "
    "in a difference; s is the standard deviation over seeds without that common part, pooled "
    "over all cells with at least two seeds, and t the 97.5 % point of Student's distribution for "
    "its degrees of freedom. All decided in favour: *supports*. One decided "
    "against: *contradicts*. Otherwise: *cannot reach*."
)

Values = Mapping[Place, Mapping[int, float]]


@dataclass(frozen=True)
class Contrast:
    """``sum of weight * row``, claimed positive, or within ``margin`` of zero."""

    terms: tuple[tuple[float, str], ...]
    margin: float | None = None

    def __str__(self) -> str:
        return " ".join(f"{'+' if w > 0 else '-'} [{row}]" for w, row in self.terms).lstrip("+ ")


def above(higher: str, lower: str) -> Contrast:
    """``higher`` is better than ``lower``."""
    return Contrast(((1, higher), (-1, lower)))


def close(one: str, other: str, margin: float) -> Contrast:
    """Two rows differ by at most ``margin``."""
    return Contrast(((1, one), (-1, other)), margin)


def gains_more(with_a: str, without_a: str, with_b: str, without_b: str) -> Contrast:
    """The gain of a is larger than the gain of b."""
    return Contrast(((1, with_a), (-1, without_a), (-1, with_b), (1, without_b)))


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what it says about rows of a table.

    where: the ending of the columns it is about; by default it is about all
    """

    text: str
    contrasts: tuple[Contrast, ...]
    where: str = ""

    @property
    def rows(self) -> set[str]:
        return {row for contrast in self.contrasts for _, row in contrast.terms}


@dataclass(frozen=True)
class Verdict:
    """What the numbers say about a claim in one column, and the contrast that decided it.

    slack: how far the contrast is on the claim's side of the border
    """

    word: str
    because: str
    slack: float = -math.inf


# 97.5 % points of Student's distribution, by degrees of freedom from 1
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


@dataclass(frozen=True)
class Noise:
    """A standard deviation, and on how many degrees of freedom it rests."""

    deviation: float
    freedom: int

    @property
    def t(self) -> float:
        """How many deviations decide: many where few values tell the noise.

        >>> Noise(1.0, 1).t, round(Noise(1.0, 30).t, 2)
        (12.71, 2.04)
        """
        if self.freedom <= len(STUDENT):
            return STUDENT[self.freedom - 1]
        # the first terms of its expansion around the normal distribution
        return 1.96 + 2.372 / self.freedom + 2.823 / self.freedom**2

    def limit(self, weights: Iterable[float], seeds: int) -> float:
        """What a contrast with these weights must exceed."""
        return self.t * self.deviation * math.sqrt(sum(w * w for w in weights) / seeds)


def noise(blocks: Iterable[Sequence[Mapping[int, float]]]) -> Noise | None:
    """The spread over seeds that cells do not share; ``None`` where nothing can tell it.

    A block is a list of cells whose seeds have common effects. Its values are fitted by a mean
    for each cell plus an effect for each seed; what is left is noise.

    >>> noise([[{0: 1.0, 1: 3.0}, {0: 5.0, 1: 7.0}]])      # both cells rise by 2: no noise
    Noise(deviation=0.0, freedom=1)
    >>> noise([[{0: 1.0, 1: 3.0}]]) is None                # one cell: effect or noise?
    True
    """
    left, freedom = 0.0, 0
    for block in blocks:
        cells = [cell for cell in block if len(cell) > 1]
        entries = [(n, seed, v) for n, cell in enumerate(cells) for seed, v in cell.items()]
        seeds = sorted({seed for _, seed, _ in entries})
        design = np.zeros((len(entries), len(cells) + len(seeds)))
        for line, (number, seed, _) in enumerate(entries):
            design[line, number] = design[line, len(cells) + seeds.index(seed)] = 1
        values = np.array([value for _, _, value in entries])
        if not len(values):
            continue
        fit, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
        left += float(np.square(values - design @ fit).sum())
        freedom += len(values) - int(rank)
    # rounding of the fit is no noise
    return Noise(round(math.sqrt(left / freedom), 9), freedom) if freedom else None


def judge(claim: Claim, column: str, values: Values, spread: Noise | None) -> Verdict:
    """The verdict on a claim in one column."""
    decided = [_decide(contrast, column, values, spread) for contrast in claim.contrasts]
    for word in (CONTRADICTS, OUT_OF_REACH, SUPPORTS):
        chosen = [verdict for verdict in decided if verdict.word == word]
        if chosen:
            return min(chosen, key=lambda verdict: verdict.slack)
    raise AssertionError("a claim has at least one contrast")


def _decide(contrast: Contrast, column: str, values: Values, spread: Noise | None) -> Verdict:
    rows = [values.get((row, column), {}) for _, row in contrast.terms]
    seeds = sorted(set.intersection(*(set(row) for row in rows)))
    if not seeds:
        absent = [row for (_, row), held in zip(contrast.terms, rows, strict=True) if not held]
        reason = f"no result for {absent[0]}" if absent else "no seed in common"
        return Verdict(OUT_OF_REACH, reason)
    value = statistics.fmean(
        sum(w * row[seed] for (w, _), row in zip(contrast.terms, rows, strict=True))
        for seed in seeds
    )
    said = f"{contrast} = {value:+.2f}"
    if spread is None:
        return Verdict(OUT_OF_REACH, f"{said}, and too few seeds to tell the noise")
    limit = spread.limit((w for w, _ in contrast.terms), len(seeds))
    said += f", noise {limit:.2f}, n = {len(seeds)}"
    # the distance to the border on the claim's side of it
    inside = value if contrast.margin is None else contrast.margin - abs(value)
    if contrast.margin is not None:
        said += f", margin {contrast.margin:g}"
    if inside > limit:
        return Verdict(SUPPORTS, said, inside)
    if inside < -limit:
        return Verdict(CONTRADICTS, said, inside)
    return Verdict(OUT_OF_REACH, said, inside)
