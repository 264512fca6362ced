"""The report: the paper's numbers and ours, paired differences, verdicts, and what is missing."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from specgrad_fl import machine, storage
from specgrad_fl.config import to_toml
from specgrad_fl.runs import RunDirectory, run_name

from specgrad_study.compare import MEASURES
from specgrad_study.paper import claims, document
from specgrad_study.paper.claims import Interval, Verdict
from specgrad_study.paper.document import Block, Bullets, Heading, Paragraph, Picture, Table
from specgrad_study.paper.experiment import LEFT_OUT, Measured, Part
from specgrad_study.paper.gather import Judged, Subject, finished_runs, left_out, verdicts
from specgrad_study.paper.numbers import paper_numbers
from specgrad_study.paper.results_json import as_data
from specgrad_study.paper.sources import UNKNOWN


def write(parts: Sequence[Part], subject: Subject, out: Path) -> Path:
    """``report.md``, ``report.html``, figures, ``results.json``, ``configuration.toml``."""
    storage.make_folder(out)
    judged = {part.experiment.name: verdicts(part) for part in parts}
    title = f"The paper's experiments, preset {subject.preset.name}"
    blocks: list[Block] = [Heading(1, title), *_opening(parts, subject)]
    blocks += _summary(parts, judged)
    for part in parts:
        blocks += _section(part, judged[part.experiment.name], subject, out)
    blocks += _origins(parts, subject)
    storage.write_text(out / "report.md", document.markdown(blocks))
    storage.write_text(out / "report.html", document.page(title, blocks))
    storage.write_text(out / "configuration.toml", to_toml(subject.preset.base.changed()))
    data = as_data(parts, judged, subject)
    storage.write_text(out / "results.json", json.dumps(data, indent=1) + "\n")
    return out / "report.md"


def _opening(parts: Sequence[Part], subject: Subject) -> list[Block]:
    asked = {
        run_name(config): config
        for part in parts
        for cell in part.cells
        if part.experiment.trained(cell)
        for config in cell.configs()
    }
    done = sum(subject.archive.finished(config) is not None for config in asked.values())
    papers = [part for part in parts if not part.experiment.ours]
    base = subject.preset.base
    shared = {config.digest for config in (base, base.replace(filter="fft"))}
    own = [part.experiment.name for part in papers if _has_own_result(part, shared)]
    command = shlex.join(("specgrad-fl", "reproduce", *subject.command))
    return [
        Paragraph(
            f"{done} of the {len(asked)} runs that this preset asks for are finished; "
            f"{len(own)} of the {len(papers)} experiments of the paper in this report have a "
            f"result of their own ({', '.join(own) or 'none'}): something to compare besides "
            "FedAvg with and without the filter at the preset's settings, which most of them "
            f"share. Compared is the {MEASURES[subject.measure][1]}. Made by `{command}`, commit "
            f"`{machine.commit() or UNKNOWN}`; settings of every run: `configuration.toml` "
            "with the changes in `results.json`, which holds everything that a verdict rests on."
        ),
        Heading(2, "What differs from the paper's protocol"),
        Bullets(subject.preset.reductions),
    ]


def _has_own_result(part: Part, shared: Collection[str]) -> bool:
    """Whether a row has a paired difference, or any value where no row has a baseline.

    shared: digests of runs that do not count, since many experiments have them
    """
    common = {
        cell.place
        for cell in part.cells
        if part.experiment.trained(cell) and cell.config and cell.config.digest in shared
    }
    paired = any(part.experiment.baseline(row) for row, _ in part.results)
    return any(
        part.apart(*place) if paired else found.values
        for place, found in part.results.items()
        if place not in common
    )


def _summary(parts: Sequence[Part], judged: dict[str, list[Judged]]) -> list[Block]:
    blocks: list[Block] = [Heading(2, "Claims"), Paragraph(claims.RULE)]
    for ours, who in ((False, "The paper's claims"), (True, "Claims of ours")):
        chosen = [
            (part.experiment.name, *each)
            for part in parts
            for each in judged[part.experiment.name]
            if (each[0].said == "") == ours
        ]
        if not chosen:
            continue
        rows = [
            (
                name,
                claim.text,
                *(() if ours else (claim.said,)),
                column,
                verdict.text,
                str(verdict.seeds),
            )
            for name, claim, column, verdict in chosen
        ]
        titles = ("experiment", "claim", *(() if ours else ("said in",)), "where", "verdict")
        blocks.append(Paragraph(f"{who}: {_counted([v for *_, v in chosen])}"))
        blocks.append(Table((*titles, "seeds"), tuple(rows)))
    return blocks


def _counted(found: Sequence[Verdict]) -> str:
    """How many verdicts there are of each kind; those below three seeds apart."""
    words = Counter(verdict.word for verdict in found)
    counted = sum(verdict.counted for verdict in found)
    return (
        f"{counted} of {len(found)} rest on {claims.LEAST_SEEDS} seeds or more: "
        f"{words[claims.SUPPORTS]} supported, {words[claims.CONTRADICTS]} contradicted, "
        f"{words[claims.UNDECIDED]} undecided. Not counted: {words[claims.PRELIMINARY]} "
        f"preliminary, {words[claims.MISSING]} without a result."
    )


def _section(part: Part, judged: Sequence[Judged], subject: Subject, out: Path) -> list[Block]:
    experiment = part.experiment
    blocks: list[Block] = [Heading(2, f"{experiment.title} ({experiment.reference})")]
    remark = experiment.remark(part.results, subject.archive)
    note = " ".join(filter(None, (experiment.note, remark)))
    blocks += [Paragraph(note)] if note else []
    if not part.measured_columns:
        blocks.append(Paragraph("No cell is finished."))
    blocks += [_table(part, column) for column in part.measured_columns]
    for draw in experiment.draws:
        blocks += [Picture(path, experiment.title) for path in draw(part, subject.archive, out)]
    known = [each for each in judged if each[2].word != claims.MISSING]
    if known:
        titles = ("claim", "where", "verdict", "seeds", "decisive difference", "margin")
        rows = tuple(
            (c.text, column, v.text, str(v.seeds), str(v.decisive), c.margin or "none")
            for c, column, v in known
        )
        blocks.append(Table(titles, rows))
    missing = _missing(part)
    if missing:
        blocks += [Paragraph("Not run:"), Bullets(tuple(missing))]
    return blocks


def _table(part: Part, column: str) -> Table:
    """A column seed by seed, with paired differences to the baseline of each row."""
    numbers = paper_numbers(part.experiment.name)
    rows = _rows(part, column)
    seeds = sorted({seed for row in rows for seed in part.results[row, column].values})
    compared = any((row, column) in numbers for row in rows)
    paired = any(part.experiment.baseline(row) for row in rows)
    lines = []
    for row in rows:
        found, number = part.results[row, column], numbers.get((row, column))
        line = [row, *([str(number or "-")] if compared else [])]
        line += [_value(found, seed) for seed in seeds]
        base = part.experiment.baseline(row)
        if paired:
            theirs = numbers.get((base, column)) if base else None
            apart = number.mean - theirs.mean if number and theirs else None
            line += [("" if apart is None else f"{apart:+.2f}")] if compared else []
            own = part.apart(row, column)
            line.append(str(Interval.of(own)) if own else "")
        lines.append(tuple(line))
    titles = ["", *(["paper"] if compared else []), *(f"seed {seed}" for seed in seeds)]
    if paired:
        titles += (["gain, paper"] if compared else []) + ["gain [95 %] (seeds)"]
    return Table((column, *titles[1:]), tuple(lines))


def _value(found: Measured, seed: int) -> str:
    return f"{found.values[seed]:.2f}" if seed in found.values else ""


def _rows(part: Part, column: str) -> list[str]:
    """The rows of a column, without those that the preset leaves out."""
    return [
        row
        for (row, where), found in part.results.items()
        if where == column and (found.values or found.missing != (LEFT_OUT,))
    ]


def _missing(part: Part) -> list[str]:
    """What has no result, by column and reason, every cell by its name."""
    columns = list(dict.fromkeys(place[1] for place in part.results))
    whole = [column for column in columns if left_out(part, column)]
    reasons: dict[tuple[str, str], list[str]] = {}
    for (row, column), found in part.results.items():
        if found.missing and column not in whole:
            reasons.setdefault((column, "; ".join(map(str, found.missing))), []).append(row)
    same: dict[tuple[str, str], list[str]] = {}
    for (column, reason), rows in reasons.items():
        same.setdefault((reason, ", ".join(rows)), []).append(column)
    lines = [f"{LEFT_OUT}: {'; '.join(whole)}"] if whole else []
    return lines + [f"{'; '.join(c)}, {reason}: {rows}" for (reason, rows), c in same.items()]


def _origins(parts: Sequence[Part], subject: Subject) -> list[Block]:
    """Machines and commits of all results, and what the folder holds besides."""
    runs = finished_runs(parts, subject)
    made = Counter(run.source for run in runs.values())
    measured = Counter(
        source
        for part in parts
        for cell_place, found in part.results.items()
        if cell_place not in {cell.place for cell in part.cells if part.experiment.trained(cell)}
        for source in found.sources.values()
    )
    items = [f"{count} runs, {source}" for source, count in made.items()]
    items += [f"{count} measurements besides runs, {source}" for source, count in measured.items()]
    sources = {*made, *measured}
    commits, machines = {s.commit for s in sources}, {s.machine for s in sources}
    text = f"Results of {len(commits)} commits and {len(machines)} machines are in this report."
    if UNKNOWN in commits:
        text += " Where a commit is unknown, its run did not record it."
    notes = [text] if sources else []
    notes += _strangers(runs, subject)
    return [
        Heading(2, "Where the results come from"),
        *([Paragraph(" ".join(notes))] if notes else []),
        Bullets(tuple(items) or ("no finished run",)),
    ]


def _strangers(known: Iterable[str], subject: Subject) -> list[str]:
    """Runs that are at hand and belong to none of the report's cells."""
    folder = subject.archive.folder
    held = {p.parent.name for p in folder.glob("*/config.toml")} if folder.is_dir() else set()
    others = [name for name in held - set(known) if RunDirectory(folder / name).finished]
    notes = []
    if others:
        notes.append(
            f"{len(others)} finished runs in the folder have other settings than every cell of "
            "this report: another preset, other experiments, or other seeds. They are not used."
        )
    for earlier in subject.archive.earlier:
        unused = len(set(earlier.runs) - set(known))
        name = f"{earlier.path.parent.name}/{earlier.path.name}"
        if earlier.preset != subject.preset.name:
            notes.append(
                f"{name} is a report of the preset {earlier.preset}: {unused} of its "
                f"{len(earlier.runs)} runs have other settings and are not used, and neither is "
                "what it measured besides runs."
            )
        elif unused:
            notes.append(f"{unused} of the {len(earlier.runs)} runs of {name} are in no cell here.")
    return notes
