"""The report as data: ``results.json`` holds everything that a verdict rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specgrad_fl import machine

from specgrad_study.paper.archive import FORMAT, Archive, Source
from specgrad_study.paper.claims import Interval, Verdict
from specgrad_study.paper.experiment import Cell, Part, Subject, finished_runs
from specgrad_study.paper.published import paper_numbers
from specgrad_study.paper.statements import corrected

# digits behind the point: more than runs can be told apart by
DIGITS = 6


def as_data(parts: Sequence[Part], subject: Subject) -> dict[str, Any]:
    """A report as JSON."""
    # by number, so that each is written once
    sources: dict[Source, int] = {}
    base = subject.preset.base.changed()
    runs = {
        name: {
            # a share of 1, where values are percent
            **{key: round(value, DIGITS + 2) for key, value in run.summary.items()},
            "evaluations": _rounded(run.evaluations),
            "source": sources.setdefault(run.source, len(sources)),
        }
        for name, run in sorted(finished_runs(parts, subject.archive).items())
    }
    experiments = {
        part.experiment.name: {
            "cells": [_cell(cell, base, subject.archive) for cell in part.cells],
            "values": _values(part, sources),
            "verdicts": list(map(_verdict, part.verdicts)),
        }
        for part in parts
    }
    return {
        "format": FORMAT,
        "preset": subject.preset.name,
        "commit": machine.commit(),
        "measure": subject.measure,
        "command": list(subject.command),
        "sources": [vars(source) for source in sources],
        "runs": runs,
        "experiments": experiments,
        "statements": [
            {
                "statement": each.statement.text,
                "terms": each.statement.terms,
                "least": each.statement.least,
                "by_seed": _rounded(each.differences),
                "interval": _interval(each.differences),
                "holm_p": round(each.p, DIGITS),
                "survives": each.survives,
            }
            for each in corrected(cell_values(parts))
        ],
    }


def cell_values(parts: Sequence[Part]) -> dict[tuple[str, str, str], Mapping[int, float]]:
    """Values by seed of every cell, by experiment, row and column."""
    return {
        (part.experiment.name, *place): found.values
        for part in parts
        for place, found in part.results.items()
    }


def _rounded(values: Mapping[int, float]) -> dict[str, float]:
    return {str(number): round(value, DIGITS) for number, value in values.items()}


def _cell(cell: Cell, base: Mapping[str, Any], archive: Archive) -> dict[str, Any]:
    settings = cell.config.changed() if cell.config else {}
    return {
        "row": cell.row,
        "column": cell.column,
        "changes": {k: v for k, v in settings.items() if base.get(k) != v},
        "digest": cell.config.digest if cell.config else None,
        "seeds_asked": list(cell.seeds),
        "runs": {str(seed): run.name for seed, run in cell.finished(archive).items()},
    }


def _values(part: Part, sources: dict[Source, int]) -> list[dict[str, Any]]:
    numbers = paper_numbers(part.experiment.name)
    return [
        {
            "row": place[0],
            "column": place[1],
            "paper": list(vars(numbers[place]).values()) if place in numbers else None,
            "values": _rounded(dict(sorted(found.values.items()))),
            "sources": {
                str(seed): sources.setdefault(source, len(sources))
                for seed, source in sorted(found.sources.items())
            },
            "missing": list(map(str, found.missing)),
        }
        for place, found in part.results.items()
    ]


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "claim": verdict.claim.text,
        "said": verdict.claim.said,
        "margin": verdict.claim.margin,
        "where": verdict.column,
        "verdict": verdict.word,
        "text": verdict.text,
        "seeds": verdict.seeds,
        "decisive": str(verdict.decisive),
        "differences": [
            {
                **vars(finding.contrast),
                "by_seed": _rounded(finding.differences),
                "interval": _interval(finding.differences),
            }
            for finding in verdict.findings
        ],
    }


def _interval(differences: Mapping[int, float]) -> list[float] | None:
    ends = Interval.of(differences).ends if differences else None
    return [round(end, DIGITS) for end in ends] if ends else None
