"""Methods x filters x seeds: run what is missing, then a table and a picture."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgrad_fl import methods, storage
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError, suggest
from specgrad_fl.progress import Watcher
from specgrad_fl.records import Record, csv_text
from specgrad_fl.runs import RunDirectory

from specgrad_study import fleet
from specgrad_study.fleet import Job

# values by setting
Vary = Mapping[str, Sequence[Any]]
# stands for the value of a setting that has no effect
IDLE = "-"
REPORT = ("compare.json", "compare.csv", "compare.png", "compare-clients.png")
# what runs are compared by: its key in a summary, and what it is
MEASURES = {
    "last10": ("mean_last_10", "mean accuracy of the last ten rounds"),
    "final": ("final_accuracy", "accuracy after the last round"),
    "best": ("best_accuracy", "best accuracy of all rounds"),
}


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

    @property
    def label(self) -> str:
        name = self.method if self.filter == "none" else f"{self.method}+{self.filter}"
        return " ".join([name, *(f"{key}={value}" for key, value in self.varied if value != IDLE)])


def plan(
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


def row(group: Group) -> dict[str, str]:
    """One line of the table."""
    summaries = [run.summary() for run in group.runs]

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
        "to target": _rounds_to_target(summaries),
        "s/round": of("seconds_per_round", "{:.2f}"),
        "filter %": of("filter_share", "{:.2f}", 100),
        "peak MiB": of("peak_mib", "{:.0f}"),
        "MB up": of("bytes_up", "{:.1f}", 1e-6),
        "MB down": of("bytes_down", "{:.1f}", 1e-6),
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


def compare(
    configs: Sequence[Config], folder: Path, watch: Callable[[str], Watcher], vary: Vary
) -> tuple[list[Path], list[dict[str, str]]]:
    """Play what is missing; the paths of the pictures, and the rows of the table."""
    check_folder(folder)
    groups: dict[tuple[str, str, tuple[tuple[str, Any], ...]], Group] = {}
    for number, config in enumerate(configs, start=1):
        idle = config.without_effect(vary)
        varied = tuple((name, IDLE if name in idle else getattr(config, name)) for name in vary)
        told = [f"{name} {value}" for name, value in varied if value != IDLE]
        label = "/".join([config.method, config.filter, *told, f"seed {config.seed}"])
        watcher = watch(f"[{number}/{len(configs)}] {label}")
        key = (config.method, config.filter, varied)
        group = groups.setdefault(key, Group(*key, []))
        group.runs.append(fleet.complete(Job.of(config, folder), watcher))
    return _write_report(folder, list(groups.values()), configs[0])


def _write_report(
    folder: Path, groups: Sequence[Group], first: Config
) -> tuple[list[Path], list[dict[str, str]]]:
    from specgrad_fl import plots

    rows = [row(group) for group in groups]
    report = {
        "configuration": first.as_dict(),
        "runs": {group.label: [run.path.name for run in group.runs] for group in groups},
        "table": rows,
    }
    # first, since the others are known by it to be ours
    storage.write_json(folder / REPORT[0], report)
    storage.write_text(folder / "compare.csv", csv_text(rows))
    curves: dict[str, list[list[Record]]] = {
        group.label: [run.records() for run in group.runs] for group in groups
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
    return pictures, rows
