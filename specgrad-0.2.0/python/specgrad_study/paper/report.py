"""The report: the paper's numbers and ours, paired differences, verdicts, and what is missing."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from specgrad_fl import engine, machine, storage, toml
from specgrad_fl.runs import RunDirectory, run_name

from specgrad_study.compare import MEASURES
from specgrad_study.paper import claims, document, statements
from specgrad_study.paper.archive import LEFT_OUT, UNKNOWN, Source
from specgrad_study.paper.claims import Interval, Verdict
from specgrad_study.paper.document import Bullets, Heading, Paragraph, Picture, Piece, Table
from specgrad_study.paper.experiment import Part, Subject, finished_runs
from specgrad_study.paper.published import paper_numbers
from specgrad_study.paper.results_json import as_data, cell_values


def write(parts: Sequence[Part], subject: Subject, out: Path) -> Path:
    """``report.md``, ``report.html``, figures, ``results.json``, ``configuration.toml``."""
    storage.make_folder(out)
    title = f"The paper's experiments, preset {subject.preset.name}"
    pieces: list[Piece] = [Heading(1, title), *_opening(parts, subject)]
    pieces += _summary(parts, subject) + _corrected(parts)
    for part in parts:
        pieces += _section(part, subject, out)
    pieces += _origins(parts, subject)
    storage.write_text(out / "report.md", document.markdown(pieces))
    storage.write_text(out / "report.html", document.page(title, pieces))
    storage.write_text(out / "configuration.toml", toml.written(subject.preset.base.changed()))
    data = as_data(parts, subject)
    storage.write_json(out / "results.json", data)
    return out / "report.md"


def _opening(parts: Sequence[Part], subject: Subject) -> list[Piece]:
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
            f"share. Compared is the {MEASURES[subject.measure][1]}{_evaluations(subject)}. Made "
            f"by `{command}`, commit "
            f"`{machine.commit() or UNKNOWN}`; settings of every run: `configuration.toml` "
            "with the changes in `results.json`, which holds everything that a verdict rests on."
        ),
        Heading(2, "What differs from the paper's protocol"),
        Bullets(subject.preset.reductions),
    ]


def _evaluations(subject: Subject) -> str:
    """Rounds whose evaluations the mean over the last ten rounds is made of."""
    base = subject.preset.base
    last = range(max(1, base.rounds - 9), base.rounds + 1)
    rounds = [number for number in last if engine.evaluates(base, number)]
    if subject.measure != "last10" or len(rounds) in (0, 10):
        return ""
    return f" ({len(rounds)} evaluations, after rounds {', '.join(map(str, rounds))})"


def _has_own_result(part: Part, shared: Collection[str]) -> bool:
    """True if a row has a paired difference, or any value where no row has a baseline.

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


def _corrected(parts: Sequence[Part]) -> list[Piece]:
    """Our positive statements after Holm's correction; nothing where none has three seeds."""
    found = statements.corrected(cell_values(parts))
    if not found:
        return []
    rows = [
        {
            "statement": each.statement.text,
            "difference [95 %] (seeds)": str(Interval.of(each.differences)),
            "more than": f"{each.statement.least:g}",
            "Holm's p": f"{each.p:.4f}" if each.p < 0.1 else f"{each.p:.2f}",
            "survives": "yes" if each.survives else "no",
        }
        for each in found
    ]
    survivors = sum(each.survives for each in found)
    return [
        Heading(2, "Our positive statements, corrected for their number"),
        Paragraph(
            f"Elsewhere each of these {len(found)} statements is judged by its own 95 % interval. "
            "Among so many, some pass by chance. After Holm's correction of their p values "
            f"(two-sided, Student's distribution), {survivors} survive at 5 % for all of them "
            "together. Read the others as not decided."
        ),
        Table.of(rows, list(rows[0])),
    ]


def _summary(parts: Sequence[Part], subject: Subject) -> list[Piece]:
    pieces: list[Piece] = [Heading(2, "Claims"), Paragraph(claims.RULE)]
    for who, hidden in (("The paper's claims", ""), ("Claims of ours", "said in")):
        chosen = [
            (part.experiment.name, verdict)
            for part in parts
            for verdict in part.verdicts
            if bool(verdict.claim.said) != bool(hidden)
        ]
        if chosen:
            told = _counted([verdict for _, verdict in chosen])
            rows = [{"experiment": name, **_row(v, subject)} for name, v in chosen]
            titles = ("experiment", "claim", "said in", "where", "verdict", "seeds")
            shown = [title for title in titles if title != hidden]
            pieces += [Paragraph(f"{who}: {told}"), Table.of(rows, shown)]
    return pieces


def _row(verdict: Verdict, subject: Subject) -> dict[str, str]:
    """Columns of a table of verdicts."""
    return {
        "claim": verdict.claim.text,
        "said in": verdict.claim.said,
        "where": subject.preset.shown(verdict.column),
        "verdict": verdict.text,
        "seeds": str(verdict.seeds),
        "decisive difference": subject.preset.shown(str(verdict.decisive)),
        "margin": verdict.claim.margin or "none",
    }


def _counted(found: Sequence[Verdict]) -> str:
    """Count verdicts of each kind; those below three seeds apart."""
    words = Counter(verdict.word for verdict in found)
    counted = sum(verdict.counted for verdict in found)
    return (
        f"{counted} of {len(found)} rest on {claims.LEAST_SEEDS} seeds or more: "
        f"{words[claims.SUPPORTS]} supported, {words[claims.CONTRADICTS]} contradicted, "
        f"{words[claims.UNDECIDED]} undecided. Not counted: {words[claims.PRELIMINARY]} "
        f"preliminary, {words[claims.MISSING]} without a result."
    )


def _section(part: Part, subject: Subject, out: Path) -> list[Piece]:
    experiment = part.experiment
    pieces: list[Piece] = [Heading(2, part.heading)]
    remark = experiment.remark(part.results, subject.archive)
    note = " ".join(filter(None, (experiment.note, remark)))
    pieces += [Paragraph(note)] if note else []
    if not part.measured_columns:
        pieces.append(Paragraph("No cell is finished."))
    pieces += [_table(part, column, subject) for column in part.measured_columns]
    for draw in experiment.draws:
        pieces += [Picture(*drawn) for drawn in draw(part, subject.archive, out)]
    known = [_row(v, subject) for v in part.verdicts if v.word != claims.MISSING]
    if known:
        pieces.append(Table.of(known, [title for title in known[0] if title != "said in"]))
    missing = _missing(part)
    if missing:
        pieces += [Paragraph("Not run:"), Bullets(tuple(missing))]
    return pieces


def _table(part: Part, column: str, subject: Subject) -> Table:
    """A column seed by seed, with paired differences to the baseline of each row.

    A row that neither was run nor has a number in the paper is named below the table alone.
    """
    numbers, baseline = paper_numbers(part.experiment.name), part.experiment.baseline
    held = {
        row: found.values
        for (row, where), found in part.results.items()
        if where == column
        and (found.values or ((row, column) in numbers and found.missing != (LEFT_OUT,)))
    }
    seeds = sorted({seed for values in held.values() for seed in values})
    first = subject.preset.shown(column)
    lines = []
    for row, values in held.items():
        number, theirs = (numbers.get((each or "", column)) for each in (row, baseline(row)))
        own = part.apart(row, column)
        lines.append(
            {
                first: subject.preset.shown(row),
                "paper": str(number or ""),
                **{f"seed {s}": f"{values[s]:.2f}" if s in values else "" for s in seeds},
                "gain, paper": f"{number.mean - theirs.mean:+.2f}" if number and theirs else "",
                "gain [95 %] (seeds)": str(Interval.of(own)) if own else "",
            }
        )
    return Table.of(lines, [title for title in lines[0] if any(line[title] for line in lines)])


def _missing(part: Part) -> list[str]:
    """Cells without a result, by column and reason."""
    whole = part.left_out
    reasons: dict[tuple[str, str], list[str]] = {}
    for (row, column), found in part.results.items():
        if found.missing and column not in whole:
            reasons.setdefault((column, "; ".join(map(str, found.missing))), []).append(row)
    same: dict[tuple[str, str], list[str]] = {}
    for (column, reason), rows in reasons.items():
        same.setdefault((reason, ", ".join(rows)), []).append(column)
    lines = [f"{LEFT_OUT}: {'; '.join(whole)}"] if whole else []
    return lines + [f"{'; '.join(c)}, {reason}: {rows}" for (reason, rows), c in same.items()]


def _origins(parts: Sequence[Part], subject: Subject) -> list[Piece]:
    """Machines and commits of all results, and what the folder holds besides."""
    runs = finished_runs(parts, subject.archive)
    made = Counter(run.source for run in runs.values())
    measured: Counter[Source] = Counter()
    for part in parts:
        trained = {cell.place for cell in part.cells if part.experiment.trained(cell)}
        for place, found in part.results.items():
            measured.update(found.sources.values() if place not in trained else ())
    items = [f"{count} runs, {source}" for source, count in made.items()]
    items += [f"{count} measurements besides runs, {source}" for source, count in measured.items()]
    sources = {*made, *measured}
    commits, machines = {s.commit for s in sources}, {s.machine for s in sources}
    text = f"Results of {len(commits)} commits and {len(machines)} machines are in this report."
    if UNKNOWN in commits:
        text += " Where a commit is unknown, its run did not record it."
    notes = [text] if sources else []
    without = sum(not run.evaluations for run in runs.values())
    if without:
        notes.append(
            f"{without} of the {len(runs)} runs came without their evaluations by round: their "
            "accuracies are known, but no curve and no rounds to a target."
        )
    notes += _unused_runs(runs, subject)
    return [
        Heading(2, "Where the results come from"),
        *([Paragraph(" ".join(notes))] if notes else []),
        Bullets(tuple(items) or ("no finished run",)),
    ]


def _unused_runs(known: Iterable[str], subject: Subject) -> list[str]:
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
