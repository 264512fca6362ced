"""What an experiment is: cells to run, how to read them, claims to judge, figures to draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specgrad_fl.config import Config
from specgrad_fl.errors import RunError

from specgrad_study.compare import MEASURES
from specgrad_study.paper.archive import Archive, Finished
from specgrad_study.paper.claims import Claim
from specgrad_study.paper.numbers import Place
from specgrad_study.paper.presets import Preset
from specgrad_study.paper.sources import Source

# seeds that are shown where they happen to be finished, beyond those that were asked for
KNOWN_SEEDS = tuple(range(10))


@dataclass(frozen=True)
class Missing:
    """Why a value is missing; of no seed where that holds for the whole cell."""

    seed: int | None
    why: str

    def __str__(self) -> str:
        return self.why if self.seed is None else f"seed {self.seed}: {self.why}"


LEFT_OUT = Missing(None, "left out by this preset")


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

    def finished(self, archive: Archive) -> dict[int, Finished]:
        """The finished runs by seed, also of seeds that nobody asked for."""
        if self.config is None:
            return {}
        seeds = sorted({*self.seeds, *KNOWN_SEEDS})
        runs = {seed: archive.finished(self.config.replace(seed=seed)) for seed in seeds}
        return {seed: run for seed, run in runs.items() if run is not None}

    def missing(self, archive: Archive) -> tuple[Missing, ...]:
        """The seeds that were asked for and have no result, and how far they are."""
        if self.config is None:
            return (LEFT_OUT,)
        return tuple(
            Missing(config.seed, archive.progress(config))
            for config in self.configs()
            if archive.finished(config) is None
        )


@dataclass(frozen=True)
class Measured:
    """The values of a cell by seed, where each was made, and why others are missing."""

    values: dict[int, float] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()
    sources: dict[int, Source] = field(default_factory=dict)

    def apart(self, other: Measured) -> dict[int, float]:
        """The difference to another cell on the seeds that both have."""
        shared = sorted(set(self.values) & set(other.values))
        return {seed: self.values[seed] - other.values[seed] for seed in shared}


Results = dict[Place, Measured]
Reading = Callable[[Sequence[Cell], Archive, str], Results]
# what is drawn, the runs behind it, the folder to draw into
Drawing = Callable[["Part", Archive, Path], list[Path]]


def accuracies(cells: Sequence[Cell], archive: Archive, measure: str) -> Results:
    """Test accuracy in percent of every cell."""
    key = MEASURES[measure][0]
    results = {}
    for cell in cells:
        runs = cell.finished(archive)
        results[cell.place] = Measured(
            {seed: 100 * run.summary[key] for seed, run in runs.items()},
            cell.missing(archive),
            {seed: run.source for seed, run in runs.items()},
        )
    return results


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
    """One table or figure.

    cells: its entries, at the size of a preset
    claims: what is said about it, each judged in every column that it is about
    draws: its pictures
    reading: from finished runs to the table's values
    measure: measures what runs do not tell and stores it in their folder; does nothing where
        that was done before
    trained: whether the cells are runs that must be finished
    baseline: the row that a row is compared with, if any
    unit: of the values
    note: what a reader must know about the values
    remark: more of that, from the results
    ours: whether it is an experiment of ours and not of the paper
    """

    name: str
    title: str
    reference: str
    cells: Callable[[Preset], list[Cell]]
    claims: tuple[Claim, ...] = ()
    draws: tuple[Drawing, ...] = ()
    reading: Reading = accuracies
    measure: Callable[[Sequence[Cell], Context], None] | None = None
    trained: Callable[[Cell], bool] = lambda cell: True
    baseline: Callable[[str], str | None] = lambda row: None
    unit: str = "points of test accuracy"
    note: str = ""
    remark: Callable[[Results, Archive], str] = lambda results, archive: ""
    ours: bool = False


@dataclass(frozen=True)
class Part:
    """One experiment with its cells and what was read from their runs: a part of a report."""

    experiment: Experiment
    cells: Sequence[Cell]
    results: Results

    @property
    def measured_columns(self) -> list[str]:
        """Columns with at least one result, in the order of the table."""
        held = {place[1] for place, found in self.results.items() if found.values}
        return [column for column in dict.fromkeys(p[1] for p in self.results) if column in held]

    def apart(self, row: str, column: str) -> dict[int, float]:
        """The difference to the row's baseline, seed by seed; empty where it has none."""
        base = self.results.get((self.experiment.baseline(row) or "", column), Measured())
        return self.results[row, column].apart(base)

    def paired(self, column: str) -> dict[str, str]:
        """Rows of a column that share a seed with their baseline, and that baseline."""
        rows = [row for row, where in self.results if where == column]
        return {row: self.experiment.baseline(row) or "" for row in rows if self.apart(row, column)}


def against(row: str) -> Callable[[str], str | None]:
    """Every row but this one is compared with it."""
    return lambda each: None if each == row else row


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
