"""Results as files: JSON with everything, Markdown to read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specgrad_fl import storage

from benchmarks.contenders import CONTENDERS, OURS
from benchmarks.targets import TARGETS, call_times, speed_up
from benchmarks.workloads import WORKLOADS

SCHEMA = 1
Row = dict[str, Any]


def load_results(path: Path) -> dict[str, Any]:
    """Results that ``save`` wrote; a ``ValueError`` says what else the file is."""
    try:
        results = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    found = results.get("schema") if isinstance(results, dict) else None
    if found != SCHEMA:
        raise ValueError(f"{path} has schema {found!r}, not {SCHEMA}; run the benchmark again")
    return results


def save(results: dict[str, Any], path: Path) -> Path:
    """Write the JSON to ``path`` and the Markdown beside it; returns the latter's path."""
    storage.make_folder(path.parent)
    storage.write_json(path, results)
    markdown = path.with_suffix(".md")
    storage.write_text(markdown, render(results))
    return markdown


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def targets_table(rows: Sequence[Row]) -> str:
    """Every line of what the op must reach, with what was measured."""
    body = []
    for target in TARGETS:
        values = target.values(rows, "median")
        minima = target.values(rows, "minimum") if target.is_timed else {}
        body.append(
            (
                target.title,
                target.format(target.must),
                target.format(target.aim),
                target.measured(values),
                target.verdict(values),
                target.format(minima[target.worst(minima)]) if minima else "",
            )
        )
    return _table(("", "must", "aim", "measured", "reached", "from minima"), body)


def seconds(value: float) -> str:
    """A duration with three digits.

    >>> seconds(0.0000123), seconds(0.123), seconds(12.3)
    ('12.3 us', '123 ms', '12.3 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def times_table(rows: Sequence[Row]) -> str:
    """Every timed contender: median, quartiles, minimum, and how much faster ours is."""
    body = []
    table = call_times(rows)
    for row in rows:
        if row["kind"] != "time":
            continue
        times = table[row["workload"], row["method"], row["threads"]]
        ratio = speed_up(times, (row["contender"],))
        body.append(
            (
                WORKLOADS[row["workload"]].title,
                row["method"],
                str(row["threads"]),
                CONTENDERS[row["contender"]].title,
                seconds(row["median"]),
                f"{seconds(row['q1'])} to {seconds(row['q3'])}",
                seconds(row["minimum"]),
                str(row["rounds"]),
                "" if ratio is None or row["contender"] == OURS else f"{ratio:.3g}x",
            )
        )
    header = ("list", "method", "threads", "contender", "median", "quartiles", "minimum", "calls")
    return _table((*header, "specgrad is faster by"), body)


def kept_table(rows: Sequence[Row]) -> str:
    """Working memory, and everything that is kept after the first call."""
    body = [
        (
            WORKLOADS[row["workload"]].title,
            str(row["threads"]),
            f"{row['workspace']:.3f}",
            "-" if row["kept"] is None else f"{row['kept']:.3f}",
        )
        for row in rows
        if row["kind"] == "memory"
    ]
    return _table(("list", "threads", "workspace", "all memory kept, tables included"), body)


def step_table(rows: Sequence[Row]) -> str:
    """The filter inside a training step."""
    body = [
        (
            row["method"],
            CONTENDERS[row["contender"]].title,
            str(row["threads"]),
            seconds(row["step"]["median"]),
            seconds(row["filter"]["median"]),
            f"{100 * row['share']:.3g} %",
        )
        for row in rows
        if row["kind"] == "step"
    ]
    return _table(("method", "by", "threads", "step", "filter", "share"), body)


def _provenance(results: dict[str, Any]) -> str:
    machine, versions = results["machine"], results["versions"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['instruction_set']} kernels; "
        f"torch {versions['torch']}, Python {versions['python']}; "
        f"commit {results['commit'] or 'unknown'}; command `{results['command']}`.",
        f"Load {machine['load_at_start']} at the start, {results['load_at_end']} at the end.",
    ]
    if not results["complete"]:
        lines.append("The run was not completed: what is missing was not measured.")
    return " ".join(lines)


def render(results: dict[str, Any]) -> str:
    """The Markdown page."""
    rows = results["rows"]
    parts = [
        "# Benchmark of specgrad on the CPU",
        _provenance(results),
        targets_table(rows),
        "Where a line covers several cases, its worst decides and is named. Times are medians of "
        "single calls on fresh float32 gradients at ratio 0.05, contenders shuffled in time. The "
        "last column is what the fastest calls alone say, which other programs disturb least.",
        "## Times",
        times_table(rows),
        "## Training step of ResNet-20",
        step_table(rows),
        "## Memory of fft, as a share of the gradients' bytes",
        kept_table(rows),
    ]
    return "\n\n".join(parts) + "\n"
