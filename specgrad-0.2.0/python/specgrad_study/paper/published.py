"""The paper's numbers, from ``published.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specgrad_fl import toml


@dataclass(frozen=True)
class Number:
    """A mean, and its standard deviation over seeds where the paper gives one."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


Place = tuple[str, str]


@cache
def paper_numbers(experiment: str) -> dict[Place, Number]:
    """The numbers of a table by row and column; none where the paper has no table.

    >>> str(paper_numbers("table1")["FedAvg + FFT", "CIFAR-10, alpha 0.1"])
    '78.05 ± 1.88'
    """
    rows = toml.read(Path(__file__).with_name("published.toml")).get(experiment, {})
    columns = rows.pop("columns", ["CIFAR-10", "CIFAR-100"])
    return {
        (row, column): Number(*pair)
        for row, pairs in rows.items()
        for column, pair in zip(columns, pairs, strict=True)
        if pair
    }
