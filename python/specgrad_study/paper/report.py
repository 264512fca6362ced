"""The report: paper | ours | difference, figures, verdicts, and what was not run."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgrad_fl import atomic
from specgrad_fl.config import Config, to_toml
from specgrad_fl.runs import RunDirectory
from specgrad_fl.summary import MEASURES

from specgrad_study.paper import claims, document
from specgrad_study.paper.document import Block, Bullets, Heading, Paragraph, Picture, Table
from specgrad_study.paper.figures import measured_columns
from specgrad_study.paper.model import LEFT_OUT, Cell, Experiment, Measured, Results
from specgrad_study.paper.numbers import paper_numbers
from specgrad_study.paper.presets import Preset

GROUPS_IN_A_TABLE = 2
# settings in which runs on the same clients may differ
SAME_CLIENTS: dict[str, Any] = {
    name: getattr(Config(), name)
    for name in (
        "method", "options", "lr", "lr_decay", "epochs", "filter", "ratio", "filter_ratios",
        "filter_options", "filter_select", "filter_order", "filter_backend",
    )
}  # fmt: skip
# claim, column, verdict
Judged = tuple[str, str, claims.Verdict]


@dataclass(frozen=True)
class Part:
    """One experiment with its cells and what was read from their runs."""

    experiment: Experiment
    cells: Sequence[Cell]
    results: Results


@dataclass(frozen=True)
class Subject:
    """What a report is about. ``command`` is the one that makes it again."""

    preset: Preset
    runs: Path
    measure: str
    command: tuple[str, ...]


def collect(experiment: Experiment, cells: Sequence[Cell], subject: Subject) -> Part:
    """Read the results of an experiment."""
    return Part(experiment, cells, experiment.reading(cells, subject.runs, subject.measure))


def pooled_noise(parts: Sequence[Part]) -> claims.Noise | None:
    """The spread over seeds of all accuracies, each run counted once."""
    blocks: dict[str, dict[str, dict[int, float]]] = {}
    for part in parts:
        for cell in part.cells:
            if part.experiment.accuracy and cell.config is not None:
                # runs on the same clients share what a seed decides
                federation = cell.config.replace(**SAME_CLIENTS).digest
                values = part.results[cell.place].values
                blocks.setdefault(federation, {})[cell.config.digest] = values
    return claims.noise(list(block.values()) for block in blocks.values())


def _column_noise(part: Part, column: str) -> claims.Noise | None:
    """The spread within a column whose values are no accuracies."""
    return claims.noise([[f.values for place, f in part.results.items() if place[1] == column]])


def verdicts(part: Part, spread: claims.Noise | None) -> list[Judged]:
    """Claims in the columns that have all their rows, and are not left out as a whole."""
    values = {place: found.values for place, found in part.results.items()}
    columns = [c for c in dict.fromkeys(p[1] for p in part.results) if not _left_out(part, c)]
    judged = []
    for claim in part.experiment.claims:
        for column in columns:
            if column.endswith(claim.where) and all((r, column) in values for r in claim.rows):
                noise = spread if part.experiment.accuracy else _column_noise(part, column)
                judged.append((claim.text, column, claims.judge(claim, column, values, noise)))
    return judged


def _left_out(part: Part, column: str) -> bool:
    return all(
        found.missing == (LEFT_OUT,) for place, found in part.results.items() if place[1] == column
    )


def write(parts: Sequence[Part], subject: Subject, out: Path) -> Path:
    """``report.md``, ``report.html``, figures, ``results.json``, ``configuration.toml``."""
    atomic.make_folder(out)
    spread = pooled_noise(parts)
    judged = {part.experiment.name: verdicts(part, spread) for part in parts}
    title = f"The paper's experiments, preset {subject.preset.name}"
    blocks: list[Block] = [Heading(1, title), *_opening(parts, subject)]
    blocks += _summary(parts, judged, spread)
    for part in parts:
        blocks += _section(part, judged[part.experiment.name], subject, out)
    blocks += _environment(parts, subject)
    atomic.write_text(out / "report.md", document.markdown(blocks))
    atomic.write_text(out / "report.html", document.page(title, blocks))
    atomic.write_text(out / "configuration.toml", to_toml(subject.preset.base.changed()))
    data = _as_data(parts, judged, subject)
    atomic.write_text(out / "results.json", json.dumps(data, indent=1) + "\n")
    return out / "report.md"


def _opening(parts: Sequence[Part], subject: Subject) -> list[Block]:
    asked = {
        cell.run(seed, subject.runs).path
        for part in parts
        for cell in part.cells
        if cell.config is not None and part.experiment.trained(cell)
        for seed in cell.seeds
    }
    done = sum(RunDirectory(path).finished for path in asked)
    command = shlex.join(("specgrad-fl", "reproduce", *subject.command))
    return [
        Paragraph(
            f"{done} of the {len(asked)} runs that this preset asks for are finished. "
            f"Compared is the {MEASURES[subject.measure][1]}. Made by `{command}`, commit "
            f"`{commit() or 'unknown'}`; settings of every run: `configuration.toml` with the "
            "changes in `results.json`."
        ),
        Heading(2, "What differs from the paper's protocol"),
        Bullets(subject.preset.reductions),
    ]


def _summary(
    parts: Sequence[Part],
    judged: dict[str, list[Judged]],
    spread: claims.Noise | None,
) -> list[Block]:
    rows = [
        (part.experiment.name, text, column, verdict.word)
        for part in parts
        for text, column, verdict in judged[part.experiment.name]
    ]
    known = "s is not known, with too few seeds"
    if spread is not None:
        known = (
            f"s is {spread.deviation:.2f} points with {spread.freedom} degrees of freedom, so t is "
            f"{spread.t:.2f}"
        )
    blocks: list[Block] = [
        Heading(2, "The paper's claims"),
        Paragraph(f"{claims.RULE} Here {known}."),
    ]
    if rows:
        titles = ("experiment", "claim of the paper", "where", "verdict")
        blocks.append(Table(titles, tuple(rows)))
    return blocks


def _section(
    part: Part,
    judged: Sequence[Judged],
    subject: Subject,
    out: Path,
) -> list[Block]:
    experiment = part.experiment
    blocks: list[Block] = [Heading(2, f"{experiment.title} ({experiment.reference})")]
    note = " ".join(filter(None, (experiment.note, experiment.remark(subject.runs))))
    blocks += [Paragraph(note)] if note else []
    columns = measured_columns(part.results)
    if not columns:
        blocks.append(Paragraph("No cell is finished."))
    blocks += _tables(part, columns)
    drawn = (
        experiment.draw(experiment.name, part.cells, part.results, subject.runs, out)
        if experiment.draw
        else []
    )
    blocks += [Picture(path, experiment.title) for path in drawn]
    if judged:
        rows = tuple((text, column, v.word, v.because) for text, column, v in judged)
        blocks.append(Table(("claim", "where", "verdict", "closest difference"), rows))
    missing = _missing(part)
    if missing:
        blocks += [Paragraph("Not run:"), Bullets(tuple(missing))]
    return blocks


def _tables(part: Part, columns: Sequence[str]) -> list[Block]:
    """Neighbouring columns with the same rows share a table."""
    numbers = paper_numbers(part.experiment.name)
    blocks: list[Block] = []
    for chosen in _chunks(part, columns):
        compared = any((row, column) in numbers for row, column in part.results if column in chosen)
        ours = f"ours ({part.experiment.counted})"
        titles = ("paper", ours, "difference") if compared else (ours,)
        lines = []
        for row in _rows(part, chosen[0]):
            line = [row]
            for column in chosen:
                found, number = part.results[row, column], numbers.get((row, column))
                entry = [str(number or "-"), _ours(found), _difference(found, number)]
                line += entry if compared else entry[1:2]
            lines.append(tuple(line))
        groups = (("", 1), *((column, len(titles)) for column in chosen))
        blocks.append(Table(("", *(titles * len(chosen))), tuple(lines), groups))
    return blocks


def _rows(part: Part, column: str) -> list[str]:
    """The rows of a column, without those that the preset leaves out."""
    return [
        row
        for (row, where), found in part.results.items()
        if where == column and (found.values or found.missing != (LEFT_OUT,))
    ]


def _chunks(part: Part, columns: Sequence[str]) -> list[list[str]]:
    chunks: list[list[str]] = []
    for column in columns:
        last = chunks[-1] if chunks else []
        room = 0 < len(last) < GROUPS_IN_A_TABLE
        if room and _rows(part, last[0]) == _rows(part, column):
            last.append(column)
        else:
            chunks.append([column])
    return chunks


def _ours(found: Measured) -> str:
    return str(found) if found.values else "not run"


def _difference(found: Measured, number: Any) -> str:
    return f"{found.mean - number.mean:+.2f}" if found.values and number else ""


def _missing(part: Part) -> list[str]:
    """What has no result, by column and reason, every cell by its name."""
    columns = list(dict.fromkeys(place[1] for place in part.results))
    whole = [column for column in columns if _left_out(part, column)]
    reasons: dict[tuple[str, str], list[str]] = {}
    for (row, column), found in part.results.items():
        if found.missing and column not in whole:
            reasons.setdefault((column, "; ".join(found.missing)), []).append(row)
    same: dict[tuple[str, str], list[str]] = {}
    for (column, reason), rows in reasons.items():
        same.setdefault((reason, ", ".join(rows)), []).append(column)
    lines = [f"{LEFT_OUT}: {'; '.join(whole)}"] if whole else []
    return lines + [f"{'; '.join(c)}, {reason}: {rows}" for (reason, rows), c in same.items()]


def _environment(parts: Sequence[Part], subject: Subject) -> list[Block]:
    """The machines of the finished runs."""
    seen: dict[str, int] = {}
    for run in _finished(parts, subject):
        line = _machine(run)
        seen[line] = seen.get(line, 0) + 1
    items = tuple(f"{count} runs: {line}" for line, count in seen.items()) or ("no finished run",)
    return [Heading(2, "Environment of the runs"), Bullets(items)]


def _machine(run: RunDirectory) -> str:
    """The machine of a run in one line."""
    try:
        facts = json.loads((run.path / "environment.json").read_text(encoding="utf-8"))
        packages = ", ".join(f"{k} {v}" for k, v in facts["packages"].items())
        gpus = f", {', '.join(facts['gpus'])}" if facts["gpus"] else ""
        return (
            f"{facts['cpu']}, {facts['cores']} cores{gpus}, {facts['platform']}, Python "
            f"{facts['python']}, {packages}, filter backends {', '.join(facts['filter_backends'])}"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown: no readable environment.json"


def _finished(parts: Sequence[Part], subject: Subject) -> list[RunDirectory]:
    runs = {
        run.path: run
        for part in parts
        for cell in part.cells
        for run in cell.finished(subject.runs).values()
    }
    return list(runs.values())


def commit() -> str | None:
    """The commit of this source tree; ``None`` for an installed package."""
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


def _as_data(
    parts: Sequence[Part],
    judged: dict[str, list[Judged]],
    subject: Subject,
) -> dict[str, Any]:
    base = subject.preset.base.changed()
    return {
        "preset": subject.preset.name,
        "commit": commit(),
        "measure": subject.measure,
        "experiments": {
            part.experiment.name: {
                "cells": [_cell_data(cell, part, base, subject.runs) for cell in part.cells],
                "verdicts": [
                    {"claim": text, "where": column, "verdict": v.word, "because": v.because}
                    for text, column, v in judged[part.experiment.name]
                ],
            }
            for part in parts
        },
    }


def _cell_data(cell: Cell, part: Part, base: dict[str, Any], runs: Path) -> dict[str, Any]:
    found = part.results.get(cell.place, Measured())
    number = paper_numbers(part.experiment.name).get(cell.place)
    settings = cell.config.changed() if cell.config else {}
    return {
        "row": cell.row,
        "column": cell.column,
        "changes": {k: v for k, v in settings.items() if base.get(k) != v},
        "digest": cell.config.digest if cell.config else None,
        "paper": [number.mean, number.deviation] if number else None,
        "ours": {str(seed): round(value, 4) for seed, value in found.values.items()},
        "missing": list(found.missing),
        "runs": {
            run.path.name: {key: run.summary()[key] for key, _ in MEASURES.values()}
            for run in cell.finished(runs).values()
        },
    }
