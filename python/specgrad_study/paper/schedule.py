"""Which runs the cells of experiments need, and which machine plays them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from specgrad_fl.errors import RunError

from specgrad_study import fleet
from specgrad_study.fleet import Job
from specgrad_study.paper.experiment import Cell


def parse_shard(text: str) -> tuple[int, int]:
    """``i/n``: the i-th of n parts, counted from 1.

    >>> parse_shard("2/3")
    (2, 3)
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise RunError(f"shard is {text!r}; write i/n with i from 1 to n, such as 1/4")
    return int(match[1]), int(match[2])


def jobs_of(
    cells: Sequence[Cell], folder: Path, data_root: str = "", workers: int = 0
) -> list[Job]:
    """The runs of cells, each once; the first seed of every cell comes before the second."""
    configs = [
        (place, config.replace(data_root=data_root, workers=workers or config.workers))
        for cell in cells
        for place, config in enumerate(cell.configs())
    ]
    ordered = sorted(configs, key=lambda entry: entry[0])
    return fleet.unique([Job.of(config, folder) for _, config in ordered])


def shard(jobs: Sequence[Job], part: int, parts: int) -> list[Job]:
    """Every n-th job, so that long and short ones spread evenly."""
    return list(jobs[part - 1 :: parts])
