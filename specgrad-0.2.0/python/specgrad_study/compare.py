"""Methods x filters x seeds: run what is missing, then a table of gains and a picture."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specgrad_fl import methods, storage
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError, suggest
from specgrad_fl.records import Record, csv_text
from specgrad_fl.results import text_table
from specgrad_fl.runs import RunDirectory

from specgrad_study import fleet
from specgrad_study.fleet import Outcome
from specgrad_study.intervals import Interval, paired_sums

# values by setting
Vary = Mapping[str, Sequence[Any]]
# stands for the value of a setting that has no effect
IDLE = "-"
REPORT = ("compare.json", "compare.csv", "compare.png", "compare-clients.png")
# accuracies by which runs are compared: key in the summary, and meaning
MEASURES = {
    "last10": ("mean_last_10", "mean accuracy of the last ten rounds"),
    "final": ("final_accuracy", "accuracy after the last round"),
    "best": ("best_accuracy", "best accuracy of all rounds"),
}
HEADINGS = {"last10": "last 10 %", "final": "final %", "best": "best %"}
WIDTH = 80


def check_measure(name: str) -> None:
    """Refuse a measure that does not exist."""
    if name not in MEASURES:
        raise ConfigError(f"there is no measure {name!r}; {suggest(name, MEASURES)}")


@dataclass(frozen=True)
class Group:
    """The runs of one method, filter and set of varied settings, one for each seed."""

    method: str
    filter: str
    varied: tuple[tuple[str, Any], ...]
    runs: list[RunDirectory]

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        return [run.summary() for run in self.runs]

    def accuracies(self, measure: str) -> dict[int, float]:
        """Accuracy in percent by seed."""
        key = MEASURES[measure][0]
        return {summary["seed"]: 100 * summary[key] for summary in self.summaries}

    @property
    def label(self) -> str:
        name = self.method if self.filter == "none" else f"{self.method}+{self.filter}"
        return " ".join([name, *(f"{key}={value}" for key, value in self.varied if value != IDLE)])


def configurations(
    base: Config, names: Sequence[str], filters: Sequence[str], seeds: Sequence[int], vary: Vary
) -> list[Config]:
    """The configurations, in the order in which they are run: all of one seed together.

    vary: values of other settings; a setting that has no effect, as a ratio without a filter, is
        not varied
    """
    if not (names and filters and seeds):
        raise RunError("there is nothing to compare; give at least one method, filter and seed")
    own = {name: methods.own_options(name, base.options, names) for name in names}
    found: dict[str, Config] = {}
    for seed, name, kind, *values in itertools.product(seeds, names, filters, *vary.values()):
        config = base.replace(method=name, filter=kind, seed=seed, options=own[name])
        changes = dict(zip(vary, values, strict=True))
        idle = config.replace(**changes).without_effect(changes)
        config = config.replace(**{name: v for name, v in changes.items() if name not in idle})
        found[config.digest] = config
    return list(found.values())


def baseline(group: Group, groups: Sequence[Group]) -> Group | None:
    """The row that a row is compared with; ``None`` for the first.

    A filter is compared with none (or with the first filter) of the same method, a method with
    the first method, other settings with their first values.
    """
    plain = "none" if any(other.filter == "none" for other in groups) else groups[0].filter
    method, kind, first = group.method, group.filter, False
    if kind != plain:
        kind = plain
    elif method != groups[0].method:
        method = groups[0].method
    else:
        first = True
    for other in groups:
        pairs = zip(other.varied, group.varied, strict=True)
        same = first or all(one == two or one[1] == IDLE for one, two in pairs)
        if (other.method, other.filter) == (method, kind) and same:
            return None if other is group else other
    return None


def spread(values: Sequence[float], form: str = "{:.1f}") -> str:
    """Mean and sample deviation.

    >>> spread([80.0, 82.0]), spread([80.0])
    ('81.0 +- 1.4', '80.0')
    """
    mean = form.format(statistics.fmean(values))
    return mean if len(values) == 1 else f"{mean} +- {form.format(statistics.stdev(values))}"


def _rounds_to_target(summaries: list[dict[str, Any]]) -> str:
    if not summaries[0]["target"]:
        return "-"
    reached = [s["rounds_to_target"] for s in summaries if s["rounds_to_target"] is not None]
    if not reached:
        return "never"
    text = spread(reached, "{:.0f}")
    return text if len(reached) == len(summaries) else f"{text} ({len(reached)}/{len(summaries)})"


@dataclass(frozen=True)
class Comparison:
    """Finished runs, compared by one measure: the accuracies of ``MEASURES``."""

    groups: Sequence[Group]
    measure: str

    @cached_property
    def gains(self) -> list[tuple[Group, Interval] | None]:
        """For each row its baseline, and the gain over it in points, paired by seed."""
        found: list[tuple[Group, Interval] | None] = []
        for group in self.groups:
            other = baseline(group, self.groups)
            own = group.accuracies(self.measure)
            base = {} if other is None else other.accuracies(self.measure)
            apart = paired_sums([(1, own), (-1, base)])
            found.append((other, Interval.of(apart)) if other is not None and apart else None)
        return found

    def rows(self) -> list[dict[str, str]]:
        """The table, with all its columns."""
        return [self._row(*each) for each in zip(self.groups, self.gains, strict=True)]

    def _row(self, group: Group, gain: tuple[Group, Interval] | None) -> dict[str, str]:
        summaries = group.summaries

        def of(key: str, form: str = "{:.1f}", factor: float = 1.0) -> str:
            return spread([factor * s[key] for s in summaries], form)

        clients = {}
        if all("client_accuracy" in s for s in summaries):
            for name, key in (("client mean %", "mean"), ("spread %", "spread"),
                              ("worst tenth %", "worst_decile")):  # fmt: skip
                clients[name] = spread([100 * s["client_accuracy"][key] for s in summaries])
        return {
            "method": group.method,
            "filter": group.filter,
            **{name: f"{value}" for name, value in group.varied},
            "seeds": str(len(summaries)),
            "final %": of("final_accuracy", factor=100),
            **clients,
            "best %": of("best_accuracy", factor=100),
            "last 10 %": of("mean_last_10", factor=100),
            "gain": "-" if gain is None else gain[1].text,
            "over": "-" if gain is None else gain[0].label,
            "to target": _rounds_to_target(summaries),
            "s/round": of("seconds_per_round", "{:.2f}"),
            "filter %": of("filter_share", "{:.2f}", 100),
            "peak MiB": of("peak_mib", "{:.0f}"),
            "MB up": of("bytes_up", "{:.1f}", 1e-6),
            "MB down": of("bytes_down", "{:.1f}", 1e-6),
        }

    def text(self) -> str:
        """The columns that answer the question, as far as 80 characters go, and their meaning."""
        heading, rows = HEADINGS[self.measure], self.rows()
        names = ["method", "filter", *(name for name, _ in self.groups[0].varied), "seeds", heading]
        names += ["gain", "over", "worst tenth %", "to target", "s/round"]
        shown = [name for name in names if any(row.get(name, "-") != "-" for row in rows)]
        for dropped in ("s/round", "to target", "worst tenth %", "over", "seeds", ""):
            table = text_table([[row[name] for name in shown] for row in rows], shown)
            if max(map(len, table)) <= WIDTH:
                break
            shown = [name for name in shown if name != dropped]
        notes = [f"{heading}: {MEASURES[self.measure][1]} on the test set"]
        if len(self.groups[0].runs) > 1:
            notes.append("+-: sample standard deviation over seeds")
            notes.append("gain: points, mean of the differences seed by seed [95 % interval]")
        elif any(self.gains):
            notes.append("gain: points, of one seed; --seeds 0,1,2 gives it an interval")
        return "\n".join([*table, *notes])

    def result(self) -> str:
        """The best row in one line."""
        means = [statistics.fmean(g.accuracies(self.measure).values()) for g in self.groups]
        best = max(range(len(means)), key=means.__getitem__)
        seeds = len(self.groups[best].runs)
        told = f"best: {self.groups[best].label}, {means[best]:.1f} %"
        gain = self.gains[best]
        if gain is not None:
            told += f", {gain[1].text} points over {gain[0].label}"
        return f"{told} ({seeds} seed{'s' if seeds > 1 else ''})"

    def report(self) -> dict[str, Any]:
        """Everything as JSON has it."""
        gains = [
            {"row": group.label}
            if gain is None
            else {"row": group.label, "over": gain[0].label, **gain[1].as_dict()}
            for group, gain in zip(self.groups, self.gains, strict=True)
        ]
        return {
            "measure": self.measure,
            "runs": {group.label: [run.path.name for run in group.runs] for group in self.groups},
            "table": self.rows(),
            "gains": gains,
        }


def check_folder(folder: Path) -> None:
    """Refuse a folder with files of the report's names that are not an earlier report's."""
    found = [name for name in REPORT if (folder / name).exists()]
    try:
        ours = "configuration" in json.loads((folder / REPORT[0]).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        ours = False
    if found and not ours:
        raise RunError(
            f"{folder} holds {found[0]}, which specgrad-fl compare did not write; choose another "
            "--out"
        )


def compare(outcomes: Sequence[Outcome], vary: Vary, measure: str) -> Comparison:
    """Finished runs by method, filter and varied settings."""
    groups: dict[tuple[str, str, tuple[tuple[str, Any], ...]], Group] = {}
    for outcome in outcomes:
        job = outcome.job
        if outcome.status != fleet.FINISHED:
            alike = all(other.reason == outcome.reason for other in outcomes)
            where = "" if alike else f"{job.path.name} did not finish: "
            raise RunError(f"{where}{outcome.reason}", outcome.trace)
        idle = job.config.without_effect(vary)
        varied = tuple((name, IDLE if name in idle else getattr(job.config, name)) for name in vary)
        key = (job.config.method, job.config.filter, varied)
        groups.setdefault(key, Group(*key, [])).runs.append(RunDirectory(job.path))
    return Comparison(list(groups.values()), measure)


def write_report(folder: Path, comparison: Comparison, first: Config) -> list[Path]:
    """``compare.json``, ``compare.csv`` and the pictures, whose paths are returned."""
    from specgrad_fl import plots

    report = {"configuration": first.as_dict(), **comparison.report()}
    # first: check_folder tells our reports by this file
    storage.write_json(folder / REPORT[0], report)
    storage.write_text(folder / "compare.csv", csv_text(comparison.rows()))
    curves: dict[str, list[list[Record]]] = {
        group.label: [run.records() for run in group.runs] for group in comparison.groups
    }
    pictures = [folder / "compare.png"]
    plots.bands(pictures[0], curves)
    served = {
        label: [
            accuracy for records in runs for accuracy in records[-1].get("client_accuracies", ())
        ]
        for label, runs in curves.items()
    }
    if all(served.values()):
        pictures.append(folder / "compare-clients.png")
        plots.clients(pictures[1], served)
    return pictures
