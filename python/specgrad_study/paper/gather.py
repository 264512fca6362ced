"""What a report is about: experiments with their results, and the verdicts that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgrad_study.paper import claims
from specgrad_study.paper.archive import Archive, Finished
from specgrad_study.paper.claims import Claim, Verdict
from specgrad_study.paper.experiment import LEFT_OUT, Cell, Experiment, Measured, Part
from specgrad_study.paper.presets import Preset

# claim, column, verdict
Judged = tuple[Claim, str, Verdict]


@dataclass(frozen=True)
class Subject:
    """What a report is about. ``command`` is the one that makes it again."""

    preset: Preset
    archive: Archive
    measure: str
    command: tuple[str, ...]


def collect(experiment: Experiment, cells: Sequence[Cell], subject: Subject) -> Part:
    """Read the results of an experiment."""
    results = dict(experiment.reading(cells, subject.archive, subject.measure))
    runs = {cell.place for cell in cells if experiment.trained(cell)}
    for earlier in subject.archive.earlier:
        if earlier.preset != subject.preset.name:
            continue
        for place, (values, sources) in earlier.values.get(experiment.name, {}).items():
            # a run is found by its settings, and never by the name of its row
            if place not in runs:
                found = results.get(place, Measured())
                new = {s: v for s, v in values.items() if s not in found.values}
                results[place] = Measured(
                    {**found.values, **new},
                    tuple(each for each in found.missing if each.seed not in new),
                    {**found.sources, **{seed: sources[seed] for seed in new}},
                )
    return Part(experiment, cells, results)


def verdicts(part: Part) -> list[Judged]:
    """Claims in the columns that they are about and that are not left out as a whole."""
    values = {place: found.values for place, found in part.results.items()}
    columns = [c for c in dict.fromkeys(p[1] for p in part.results) if not left_out(part, c)]
    usual = {cell.column for cell in part.cells}
    return [
        (claim, column, claims.judge(claim, column, values))
        for claim in part.experiment.claims
        for column in columns
        if column in (claim.columns or usual) and all((row, column) in values for row in claim.rows)
    ]


def left_out(part: Part, column: str) -> bool:
    return all(
        found.missing == (LEFT_OUT,) for place, found in part.results.items() if place[1] == column
    )


def finished_runs(parts: Sequence[Part], subject: Subject) -> dict[str, Finished]:
    """All runs that the report rests on, by name."""
    return {
        run.name: run
        for part in parts
        for cell in part.cells
        for run in cell.finished(subject.archive).values()
    }
