"""What an experiment is: cells to run, how to read them, claims to judge, figures to draw."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specgrad_fl.config import Config
from specgrad_fl.errors import RunError
from specgrad_fl.fleet import FAILURE, Job
from specgrad_fl.records import Record
from specgrad_fl.runs import RunDirectory
from specgrad_fl.summary import MEASURES

from specgrad_study.paper.numbers import Number, Place
from specgrad_study.paper.presets import Preset

if TYPE_CHECKING:
    from specgrad_study.paper.claims import Claim

LEFT_OUT = "left out by this preset"
# seeds that are shown where they happen to be finished, beyond those that were asked for
KNOWN_SEEDS = tuple(range(10))


@dataclass(frozen=True)
class Cell:
    """One entry of a table. ``config`` is ``None`` where the preset leaves it out."""

    row: str
    column: str
    config: Config | None
    seeds: tuple[int, ...]

    @property
    def place(self) -> Place:
        return self.row, self.column

    def configs(self) -> list[Config]:
        """One configuration for each seed."""
        if self.config is None:
            return []
        return [self.config.replace(seed=seed) for seed in self.seeds]

    def run(self, seed: int, folder: Path) -> RunDirectory:
        """The run of one seed, which may not exist yet."""
        assert self.config is not None
        return RunDirectory(Job.of(self.config.replace(seed=seed), folder).path)

    def finished(self, folder: Path) -> dict[int, RunDirectory]:
        """The finished runs by seed, also of seeds that nobody asked for."""
        if self.config is None:
            return {}
        seeds = sorted({*self.seeds, *KNOWN_SEEDS})
        runs = {seed: self.run(seed, folder) for seed in seeds}
        return {seed: run for seed, run in runs.items() if run.finished}

    def why_missing(self, folder: Path) -> list[str]:
        """For each seed that was asked for and has no result: which, and how far it is."""
        if self.config is None:
            return [LEFT_OUT]
        return [
            f"seed {seed}: {_progress(self.run(seed, folder))}"
            for seed in self.seeds
            if not self.run(seed, folder).finished
        ]


def _progress(run: RunDirectory) -> str:
    if (run.path / FAILURE).is_file():
        return "diverged"
    if not run.exists:
        return "not run"
    return f"at round {len(run.records())} of {run.config().rounds}"


@dataclass(frozen=True)
class Measured:
    """The values of a cell by seed, and why others are missing."""

    values: dict[int, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values.values())

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation; ``None`` for a single seed."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    def __str__(self) -> str:
        """Mean, deviation and number of seeds.

        >>> str(Measured({0: 50.0, 1: 52.0})), str(Measured({0: 50.0})), str(Measured())
        ('51.00 ± 1.41 (2)', '50.00 (1)', '-')
        """
        if not self.values:
            return "-"
        return f"{Number(self.mean, self.deviation)} ({len(self.values)})"


Results = dict[Place, Measured]
Reading = Callable[[Sequence[Cell], Path, str], Results]
# the experiment's name, its cells and results, the folder of the runs, the folder to draw into
Drawing = Callable[[str, Sequence[Cell], Results, Path, Path], list[Path]]


def accuracies(cells: Sequence[Cell], folder: Path, measure: str) -> Results:
    """Test accuracy in percent of every cell."""
    key = MEASURES[measure][0]
    return {
        cell.place: Measured(
            {s: 100 * run.summary()[key] for s, run in cell.finished(folder).items()},
            tuple(cell.why_missing(folder)),
        )
        for cell in cells
    }


Records = dict[int, list[Record]]


def records_of(cells: Sequence[Cell], folder: Path) -> dict[Place, Records]:
    """The rounds of every finished run, by cell and seed."""
    return {
        cell.place: {seed: run.records() for seed, run in cell.finished(folder).items()}
        for cell in cells
    }


@dataclass(frozen=True)
class Context:
    """What a measurement needs besides runs: preset, folder, and settings without effect."""

    preset: Preset
    folder: Path
    say: Callable[[str], None]
    data_root: str = ""
    workers: int = 0


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    cells: its entries, at the size of a preset
    claims: what the paper says about it, each judged in every column
    draw: its pictures
    reading: from finished runs to the table's values
    measure: measures what runs do not tell and stores it in their folder; does nothing where
        that was done before
    trained: whether the cells are runs that must be finished
    accuracy: whether the values are accuracies, whose spread is the noise of every verdict
    counted: what a cell has several values of
    note: what a reader must know about the values
    remark: more of that, from what was stored in the folder
    """

    name: str
    title: str
    reference: str
    cells: Callable[[Preset], list[Cell]]
    claims: tuple[Claim, ...] = ()
    draw: Drawing | None = None
    reading: Reading = accuracies
    measure: Callable[[Sequence[Cell], Context], None] | None = None
    trained: Callable[[Cell], bool] = lambda cell: True
    accuracy: bool = True
    counted: str = "seeds"
    note: str = ""
    remark: Callable[[Path], str] = lambda folder: ""


def tuned(cells: Sequence[Cell], files: Sequence[Config]) -> list[Cell]:
    """Cells with the learning rate and options found by ``tune`` for their data and method.

    A filter changes neither: what was found without it is reused with it.
    """
    found: dict[tuple[str, str], Config] = {}
    for config in files:
        key = (config.dataset, config.method)
        if key in found:
            raise RunError(
                f"two tuned files are for {config.method} on {config.dataset}; give one of them"
            )
        found[key] = config
    changed = []
    for cell in cells:
        best = found.get((cell.config.dataset, cell.config.method)) if cell.config else None
        if cell.config is None or best is None:
            changed.append(cell)
            continue
        config = cell.config.replace(lr=best.lr, options=best.options)
        changed.append(Cell(cell.row, cell.column, config, cell.seeds))
    return changed
