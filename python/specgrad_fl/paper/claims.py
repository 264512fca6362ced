"""The paper's claims as inequalities between cells, and the rule that judges them.

The rule. A claim is a list of contrasts: weighted sums of a table's rows that should be positive,
or should lie within a margin. Each contrast is averaged over the n seeds that all its rows have.
It is decided when it is farther from the border than ``2 s sqrt(sum of squared weights / n)``,
where s is the standard deviation over seeds, pooled over all cells of the report with two seeds
or more. A claim is supported when all its contrasts are decided in its favour, contradicted when
at least one is decided against it, and out of reach otherwise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specgrad_fl.paper.numbers import Place

SUPPORTS, CONTRADICTS, OUT_OF_REACH = "supports", "contradicts", "cannot reach"
RULE = (
    "Rule of the verdicts: a claim is a list of differences between cells that should be positive "
    "(or stay within a margin). Each is averaged over the n seeds that its cells share, and "
    "counts as decided when it is farther from the border than 2 s sqrt(sum of squared weights / "
    "n), with s the standard deviation over seeds, pooled over all cells with at least two seeds. "
    "All decided in favour: *supports*. One decided against: *contradicts*. Otherwise: *cannot "
    "reach*."
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


def noise(spreads: Iterable[Iterable[float]]) -> float | None:
    """Pooled standard deviation of groups of values; ``None`` if no group has two.

    >>> noise([[1.0, 3.0], [5.0]])
    1.4142135623730951
    """
    groups = [list(group) for group in spreads]
    groups = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return None
    return math.sqrt(sum(statistics.variance(g) * (len(g) - 1) for g in groups) / freedom)


def judge(claim: Claim, column: str, values: Values, spread: float | None) -> Verdict:
    """The verdict on a claim in one column."""
    decided = [_decide(contrast, column, values, spread) for contrast in claim.contrasts]
    for word in (CONTRADICTS, OUT_OF_REACH, SUPPORTS):
        chosen = [verdict for verdict in decided if verdict.word == word]
        if chosen:
            return min(chosen, key=lambda verdict: verdict.slack)
    raise AssertionError("a claim has at least one contrast")


def _decide(contrast: Contrast, column: str, values: Values, spread: float | None) -> Verdict:
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
        return Verdict(OUT_OF_REACH, f"{said}, and no cell has two seeds to tell the noise")
    limit = 2 * spread * math.sqrt(sum(w * w for w, _ in contrast.terms) / len(seeds))
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
