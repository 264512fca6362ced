"""``specgrad-fl tune``: the runs of a growing grid, and the settings that won."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgrad_fl import storage
from specgrad_fl.config import Config, to_toml
from specgrad_fl.errors import ConfigError, RunError, suggest
from specgrad_fl.methods import resolve_options
from specgrad_fl.runs import RunDirectory

from specgrad_study import fleet
from specgrad_study.compare import MEASURES, check_measure
from specgrad_study.fleet import FleetProgress, Job
from specgrad_study.tuning import grids
from specgrad_study.tuning.picture import heat_map
from specgrad_study.tuning.search import Axis, Found, Point, search

VALIDATION, TEST = "validation", "test"
# by what decides, the entry of a summary for each measure
KEYS = {
    TEST: {measure: key for measure, (key, _) in MEASURES.items()},
    VALIDATION: {
        "last10": "validation_mean_last_10",
        "final": "validation_accuracy",
        "best": "best_validation_accuracy",
    },
}
ABOUT = {
    VALIDATION: "samples that clients held out decided",
    TEST: "the test set decided, so its accuracy is too good",
}
# share of every client's samples that decides
HELD_OUT = 0.1


@dataclass(frozen=True)
class Trials:
    """The runs behind points of the grid."""

    base: Config
    axes: Sequence[Axis]
    seeds: tuple[int, ...]
    folder: Path
    measure: str
    decide: str
    processes: int
    quiet: bool

    def config(self, point: Point) -> Config:
        """The base with the settings of a point."""
        lr, options = self.base.lr, dict(self.base.options)
        for axis, value in zip(self.axes, point, strict=True):
            if axis.name == "lr":
                lr = value
            else:
                options[axis.name] = int(value) if axis.whole else value
        return self.base.replace(lr=lr, options=options)

    def scores(self, points: Sequence[Point]) -> list[float]:
        """Mean accuracy over seeds of each point; -inf where a run diverges."""
        jobs = [
            Job.of(self.config(point).replace(seed=seed), self.folder)
            for point in points
            for seed in self.seeds
        ]
        progress = FleetProgress(fleet.missing(jobs), self.quiet)
        try:
            outcomes = fleet.play(jobs, self.processes, progress)
        finally:
            progress.end()
        for outcome in outcomes:
            if outcome.status == fleet.REFUSED:
                raise RunError(f"{outcome.job.path.name} did not finish: {outcome.reason}")
        failed = {o.job.path for o in outcomes if o.status == fleet.DIVERGED}
        count = len(self.seeds)
        groups = [jobs[start : start + count] for start in range(0, len(jobs), count)]
        return [self._mean(group, failed) for group in groups]

    def _mean(self, jobs: Sequence[Job], failed: set[Path]) -> float:
        if any(job.path in failed for job in jobs):
            return -math.inf
        key = KEYS[self.decide][self.measure]
        return statistics.fmean(RunDirectory(job.path).summary()[key] for job in jobs)


def run(arguments: argparse.Namespace, settings: dict[str, Any]) -> None:
    """The command."""
    if settings.get("filter", "none") != "none":
        raise ConfigError(
            f"filter is {settings['filter']!r}, and tune works without one: what it finds is "
            "reused when the filter is added; remove it"
        )
    check_measure(arguments.measure)
    base = _base(arguments.decide, settings)
    if arguments.jobs > 1:
        base = base.replace(workers=1)
    axes = grids.axes_of(base.method, arguments.grid)
    out = arguments.out or Path("tuned") / base.method.replace(":", ".")
    trials = Trials(
        base=base,
        axes=axes,
        seeds=tuple(arguments.seeds),
        folder=arguments.runs or out / "runs",
        measure=arguments.measure,
        decide=arguments.decide,
        processes=arguments.jobs,
        quiet=arguments.quiet,
    )
    first = trials.config(tuple(axis.values[0] for axis in axes))
    resolve_options(first.method, first.options)
    storage.make_folder(out)
    found = search(axes, trials.scores, arguments.limit)
    if found.scores[found.best] == -math.inf:
        raise RunError(f"every setting of {base.method} diverges; give --grid smaller values of lr")
    print(write(found, trials, out))


def _base(decide: str, settings: dict[str, Any]) -> Config:
    """The settings, with samples held out where those decide."""
    if decide not in KEYS:
        raise ConfigError(f"decide is {decide!r}; {suggest(decide, KEYS)}")
    if decide == TEST:
        return Config(**settings)
    base = Config(**{"validation": HELD_OUT, **settings})
    if not base.validation:
        raise ConfigError(
            "validation is 0, so nothing is held out to decide by; choose a share such as 0.1, or "
            "--decide test"
        )
    return base


def write(found: Found, trials: Trials, out: Path) -> str:
    """``best.toml``, ``grid.json`` and ``grid.png``; a summary in words."""
    best = trials.config(found.best)
    score = found.scores[found.best]
    names = [axis.name for axis in found.axes]
    chosen = ", ".join(f"{n} = {v:g}" for n, v in zip(names, found.best, strict=True))
    verdict = (
        "no neighbour on the grid is better"
        if found.bracketed
        else f"not bracketed: the limit stopped the search at {', '.join(found.open_sides)}"
    )
    comment = (
        f"# {chosen}: accuracy {score:.4f} over seeds {list(trials.seeds)}; {verdict}; "
        f"{ABOUT[trials.decide]}\n"
    )
    storage.write_text(out / "best.toml", comment + to_toml(_reused(best)))
    points = [
        {"point": dict(zip(names, point, strict=True)), "accuracy": _finite(value)}
        for point, value in found.scores.items()
    ]
    facts = {
        "method": best.method,
        "measure": trials.measure,
        "decided_by": trials.decide,
        "validation": trials.base.validation,
        "seeds": list(trials.seeds),
        "best": dict(zip(names, found.best, strict=True)),
        "bracketed": found.bracketed,
        "open_sides": list(found.open_sides),
        "points": points,
    }
    storage.write_text(out / "grid.json", json.dumps(facts, indent=1) + "\n")
    heat_map(out / "grid.png", found, best.method)
    return (
        f"{best.method}: {chosen}, accuracy {score:.2%} ({len(points)} points, {verdict}; "
        f"{ABOUT[trials.decide]})\n"
        f"{out / 'best.toml'}"
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _reused(best: Config) -> dict[str, Any]:
    """Every setting that decides a result, but filter, seed, and what was held out to search."""
    kept = {"method", "lr", *best.changed()} - {"seed", "workers", "validation"}
    return {name: value for name, value in best.as_dict().items() if name in kept}
