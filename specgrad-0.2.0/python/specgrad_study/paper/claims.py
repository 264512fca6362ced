"""Claims as differences between cells, and the rule that judges them: see ``RULE``.

A contradiction needs a wider interval where a claim has many contrasts, since one of many is found
by chance more easily.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specgrad_study.intervals import LEVEL, Interval, paired_sums
from specgrad_study.paper.published import Place

SUPPORTS, CONTRADICTS, UNDECIDED = "supports", "contradicts", "undecided"
PRELIMINARY, MISSING = "preliminary", "no result"
LEAST_SEEDS = 3
RULE = (
    "Rule of the verdicts: a claim is a list of differences between cells that should be positive, "
    "or stay within a margin that is named. Differences are taken seed by seed, between runs that "
    "share partition, initial weights and the draw of clients. Their mean over the n seeds has a "
    "95 % interval from Student's distribution with n - 1 degrees of freedom. *Supports*: every "
    "interval lies on the claim's side. *Contradicts*: one lies on the other side, at a level "
    "divided by the number of differences. *Undecided*: neither. Below three seeds a verdict is "
    "*preliminary*, says where the differences point, and is not counted."
)

Values = Mapping[Place, Mapping[int, float]]


@dataclass(frozen=True)
class Contrast:
    """``sum of weight * row``, claimed above ``least``, or within ``margin`` of zero."""

    terms: tuple[tuple[float, str], ...]
    margin: float | None = None
    least: float = 0.0

    def __str__(self) -> str:
        return " ".join(f"{'+' if w > 0 else '-'} [{row}]" for w, row in self.terms).lstrip("+ ")

    def inside(self, value: float) -> float:
        """Distance of a value from the border, positive on the claim's side."""
        return value - self.least if self.margin is None else self.margin - abs(value)

    def differences(self, column: str, values: Values) -> dict[int, float]:
        """The contrast of every seed that all its rows have."""
        return paired_sums([(w, values.get((row, column), {})) for w, row in self.terms])


def above(higher: str, lower: str) -> Contrast:
    """``higher`` is better than ``lower``."""
    return Contrast(((1, higher), (-1, lower)))


def more_than(row: str, least: float) -> Contrast:
    """A row is more than a number."""
    return Contrast(((1, row),), least=least)


def close(one: str, other: str, margin: float) -> Contrast:
    """Two rows differ by at most ``margin``."""
    return Contrast(((1, one), (-1, other)), margin)


def each_above(higher: Iterable[str], lower: Iterable[str]) -> tuple[Contrast, ...]:
    """Each of some rows is better than each of others."""
    return tuple(above(*pair) for pair in itertools.product(higher, lower))


def each_close(rows: Iterable[str], other: str, margin: float) -> tuple[Contrast, ...]:
    """Each of some rows differs from another by at most ``margin``."""
    return tuple(close(row, other, margin) for row in rows)


def gains_more(with_a: str, without_a: str, with_b: str, without_b: str) -> Contrast:
    """The gain of a is larger than the gain of b."""
    return Contrast(((1, with_a), (-1, without_a), (-1, with_b), (1, without_b)))


@dataclass(frozen=True)
class Claim:
    """A sentence, and what it says about rows of a table.

    said: where the paper says it; empty for a claim of ours
    columns: the columns it is about; by default every column of cells that has its rows
    margin: where a margin comes from, in words
    """

    text: str
    said: str = ""
    contrasts: tuple[Contrast, ...] = ()
    columns: tuple[str, ...] = ()
    margin: str = ""

    @property
    def rows(self) -> set[str]:
        return {row for contrast in self.contrasts for _, row in contrast.terms}


def one_claim(text: str, said: str, contrasts: tuple[Contrast, ...]) -> tuple[Claim]:
    """For an experiment about which one thing is said, in every column."""
    return (Claim(text, said, contrasts),)


@dataclass(frozen=True)
class Finding:
    """One contrast of a claim in one column: its differences by seed, and what they decide.

    room: how far the mean is on the claim's side of the border
    """

    contrast: Contrast
    differences: Mapping[int, float]
    room: float = -math.inf
    against: bool = False
    favours: bool = False

    @staticmethod
    def of(contrast: Contrast, column: str, values: Values, contrasts: int) -> Finding:
        """``contrasts``: how many the claim has."""
        found = contrast.differences(column, values)
        if not found:
            return Finding(contrast, {})
        usual = Interval.of(found)
        wide = Interval.of(found, 1 - (1 - LEVEL) / contrasts)
        against = len(found) > 1 and max(map(contrast.inside, _points(wide))) < 0
        favours = len(found) > 1 and min(map(contrast.inside, _points(usual))) > 0
        return Finding(contrast, found, contrast.inside(usual.mean), against, favours)

    @property
    def counts(self) -> bool:
        return len(self.differences) >= LEAST_SEEDS

    def __str__(self) -> str:
        if not self.differences:
            return f"{self.contrast}: no seed in common"
        border = "" if self.contrast.margin is None else f", margin {self.contrast.margin:g}"
        if self.contrast.least:
            border = f", more than {self.contrast.least:g}"
        return f"{self.contrast} = {Interval.of(self.differences)}{border}"


def _points(interval: Interval) -> list[float]:
    """The ends, and zero where it lies between them: there a margin has its most room."""
    assert interval.ends is not None
    low, high = interval.ends
    return [low, high, *([0.0] if low < 0 < high else [])]


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim in one column.

    decisive: the contrast that decided, or else the one that is farthest from its claim
    """

    claim: Claim
    column: str
    word: str
    findings: tuple[Finding, ...]
    decisive: Finding

    @property
    def seeds(self) -> int:
        """The fewest seeds that any of its differences rests on."""
        return min(len(finding.differences) for finding in self.findings)

    @property
    def counted(self) -> bool:
        return self.word in (SUPPORTS, CONTRADICTS, UNDECIDED)

    @property
    def text(self) -> str:
        """The word, and for a preliminary verdict where its differences point."""
        if self.word != PRELIMINARY:
            return self.word
        favour = all(finding.room > 0 for finding in self.findings)
        return f"{PRELIMINARY}, {'in favour' if favour else 'against'}"


def judge(claim: Claim, column: str, values: Values) -> Verdict:
    """The verdict on a claim in one column."""
    findings = tuple(
        Finding.of(contrast, column, values, len(claim.contrasts)) for contrast in claim.contrasts
    )
    few = any(not finding.counts for finding in findings)
    words = {
        CONTRADICTS: [f for f in findings if f.counts and f.against],
        MISSING: [f for f in findings if not f.differences],
        PRELIMINARY: findings if few else (),
        UNDECIDED: [f for f in findings if not f.favours],
        SUPPORTS: findings,
    }
    # the first word that has findings holds, and the one with the least room decides
    word, among = next((word, among) for word, among in words.items() if among)
    return Verdict(claim, column, word, findings, min(among, key=lambda finding: finding.room))
