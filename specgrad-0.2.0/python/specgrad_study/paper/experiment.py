"""Experiments: cells to run, how to read them, claims to judge, figures to draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from specgrad_fl.config import Config
from specgrad_fl.errors import RunError

from specgrad_study.compare import MEASURES
from specgrad_study.intervals import paired_sums
from specgrad_study.paper import figures
from specgrad_study.paper.archive import LEFT_OUT, Archive, Finished, Measured, Missing, Results
from specgrad_study.paper.claims import Claim, Verdict, judge
from specgrad_study.paper.presets import Preset, Settings
from specgrad_study.paper.published import Place

# seeds that are shown where they happen to be finished, beyond those that were asked for
KNOWN_SEEDS = tuple(range(10))
# settings by row or by column of a table
Rows = Mapping[str, Settings]


@dataclass(frozen=True)
class Cell:
    """One entry of a table. ``config`` is ``None`` where the preset leaves it out."""

    row: str
    column: str
    config: Config | None
    seeds: tuple[int, ...] = ()

    @property
    def place(self) -> Place:
        return self.row, self.column

    def configs(self, more: Iterable[int] = ()) -> list[Config]:
        """One configuration for each seed, and for ``more`` of them."""
        if self.config is None:
            return []
        return [self.config.replace(seed=seed) for seed in dict.fromkeys((*self.seeds, *more))]

    def finished(self, archive: Archive) -> dict[int, Finished]:
        """The finished runs by seed, also of seeds that nobody asked for."""
        configs = sorted(self.configs(KNOWN_SEEDS), key=lambda config: config.seed)
        return {config.seed: run for config in configs if (run := archive.finished(config))}

    def missing(self, archive: Archive) -> tuple[Missing, ...]:
        """The seeds that were asked for and have no result, and how far they are."""
        unfinished = [config for config in self.configs() if archive.finished(config) is None]
        return self.lacking({config.seed: archive.progress(config) for config in unfinished})

    def lacking(self, why: Mapping[int, str]) -> tuple[Missing, ...]:
        """The reasons of seeds, where the preset asks for the cell at all."""
        if self.config is None:
            return (LEFT_OUT,)
        return tuple(Missing(seed, reason) for seed, reason in why.items())


def on(*datasets: str, **settings: Any) -> Rows:
    """A column for each data set."""
    return {dataset: {"dataset": dataset, **settings} for dataset in datasets}


def grid(preset: Preset, columns: Rows, rows: Rows) -> list[Cell]:
    """Every row in every column, by the settings of both: see :meth:`Preset.config`."""
    return [
        Cell(row, column, preset.config(**{**where, **changes}))
        for column, where in columns.items()
        for row, changes in rows.items()
    ]


def against(base: str) -> Callable[[str], str | None]:
    """Every row is compared with this one, in its own group where rows are ``group: row``.

    >>> against("none")("ViT: head"), against("none")("none")
    ('ViT: none', None)
    """

    def baseline(row: str) -> str | None:
        group, colon, _ = row.rpartition(": ")
        return None if row == f"{group}{colon}{base}" else f"{group}{colon}{base}"

    return baseline


def accuracies(cells: Sequence[Cell], archive: Archive, measure: str) -> Results:
    """Test accuracy in percent of every cell."""
    key = MEASURES[measure][0]
    results = {}
    for cell in cells:
        runs = cell.finished(archive)
        results[cell.place] = Measured(
            {seed: 100 * run.summary[key] for seed, run in runs.items() if key in run.summary},
            cell.missing(archive),
            {seed: run.source for seed, run in runs.items()},
        )
    return results


@dataclass(frozen=True)
class Context:
    """Inputs of a measurement besides runs: preset, folder, settings without effect."""

    preset: Preset
    folder: Path
    say: Callable[[str], None]
    data_root: str = ""
    workers: int = 0


@dataclass(frozen=True)
class Subject:
    """Inputs of a report. ``command`` is the one that makes it again."""

    preset: Preset
    archive: Archive
    measure: str
    command: tuple[str, ...]


# what is drawn, the runs behind it, the folder to draw into
Drawing = Callable[["Part", Archive, Path], figures.Drawn]


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    table: its cells at the size of a preset; those without seeds get the preset's
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
    labels: rows as figures show them, where their names need an explanation
    """

    name: str
    title: str
    reference: str
    table: Callable[[Preset], list[Cell]]
    claims: tuple[Claim, ...] = ()
    draws: tuple[Drawing, ...] = (figures.gains,)
    reading: Callable[[Sequence[Cell], Archive, str], Results] = accuracies
    measure: Callable[[Sequence[Cell], Context], None] | None = None
    trained: Callable[[Cell], bool] = lambda cell: True
    baseline: Callable[[str], str | None] = field(default=against("FedAvg"))
    unit: str = "points of test accuracy"
    note: str = ""
    remark: Callable[[Results, Archive], str] = lambda results, archive: ""
    ours: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    def cells(self, preset: Preset) -> list[Cell]:
        """The entries of its table."""
        usual = preset.seeds_for(self.name)
        return [replace(cell, seeds=cell.seeds or usual) for cell in self.table(preset)]


@dataclass(frozen=True)
class Part:
    """One experiment with its cells and what was read from their runs: a part of a report."""

    experiment: Experiment
    cells: Sequence[Cell]
    results: Results
    preset: Preset

    @property
    def heading(self) -> str:
        """Title and place in the paper."""
        return f"{self.preset.shown(self.experiment.title)} ({self.experiment.reference})"

    def label(self, row: str) -> str:
        """A row as figures show it."""
        return self.preset.shown(self.experiment.labels.get(row, row))

    @staticmethod
    def read(experiment: Experiment, cells: Sequence[Cell], subject: Subject) -> Part:
        """From finished runs and measurements, here and in earlier reports."""
        results = dict(experiment.reading(cells, subject.archive, subject.measure))
        runs = {cell.place for cell in cells if experiment.trained(cell)}
        for earlier in subject.archive.earlier:
            if earlier.preset == subject.preset.name:
                for place, found in earlier.values.get(experiment.name, {}).items():
                    # a run is found by its settings, and never by the name of its row
                    if place not in runs:
                        results[place] = results.get(place, Measured()).filled(found)
        return Part(experiment, cells, results, subject.preset)

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for _, column in self.results))

    @property
    def measured_columns(self) -> list[str]:
        """Columns with at least one result, in the order of the table."""
        held = {column for (_, column), found in self.results.items() if found.values}
        return [column for column in self.columns if column in held]

    @property
    def left_out(self) -> list[str]:
        """Columns that the preset leaves out as a whole."""
        run = {c for (_, c), found in self.results.items() if found.missing != (LEFT_OUT,)}
        return [column for column in self.columns if column not in run]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Claims in the columns that they are about and that are not left out as a whole."""
        values = {place: found.values for place, found in self.results.items()}
        usual = {cell.column for cell in self.cells}
        left_out = self.left_out
        return [
            judge(claim, column, values)
            for claim in self.experiment.claims
            for column in self.columns
            if column not in left_out
            and column in (claim.columns or usual)
            and all((row, column) in values for row in claim.rows)
        ]

    def apart(self, row: str, column: str) -> dict[int, float]:
        """The difference to the row's baseline, seed by seed; empty where it has none."""
        base = self.results.get((self.experiment.baseline(row) or "", column), Measured()).values
        return paired_sums([(1, self.results[row, column].values), (-1, base)])

    def paired(self, column: str) -> dict[str, str]:
        """Rows of a column that share a seed with their baseline, and that baseline."""
        rows = [row for row, where in self.results if where == column]
        return {row: self.experiment.baseline(row) or "" for row in rows if self.apart(row, column)}


def finished_runs(parts: Sequence[Part], archive: Archive) -> dict[str, Finished]:
    """All runs that a report rests on, by name."""
    return {
        run.name: run
        for part in parts
        for cell in part.cells
        for run in cell.finished(archive).values()
    }


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

    def with_best(config: Config | None) -> Config | None:
        best = found.get((config.dataset, config.method)) if config else None
        return config.replace(lr=best.lr, options=best.options) if config and best else config

    return [replace(cell, config=with_best(cell.config)) for cell in cells]
