"""``specgrad-fl tune``: the runs of a growing grid, and the settings that won."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from specgrad_fl import storage, toml
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError, suggest
from specgrad_fl.methods import resolve_options
from specgrad_fl.plots import save
from specgrad_fl.runs import RunDirectory

from specgrad_study import fleet
from specgrad_study.compare import MEASURES, check_measure
from specgrad_study.fleet import Job
from specgrad_study.tuning.search import Axis, Found, Point, axes_of, search

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


@dataclass(frozen=True)
class Trials:
    """The runs behind points of the grid, as the command line asks for them."""

    base: Config
    axes: Sequence[Axis]
    folder: Path
    arguments: argparse.Namespace

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
            for seed in self.arguments.seeds
        ]
        outcomes = fleet.play_shown(jobs, self.arguments.jobs, self.arguments.quiet)
        key = KEYS[self.arguments.decide][self.arguments.measure]
        scores = []
        for outcome in outcomes:
            if outcome.status == fleet.REFUSED:
                raise RunError(f"{outcome.job.path.name} did not finish: {outcome.reason}")
            diverged = outcome.status == fleet.DIVERGED
            summary = {key: -math.inf} if diverged else RunDirectory(outcome.job.path).summary()
            scores.append(summary[key])
        seeds = len(self.arguments.seeds)
        starts = range(0, len(scores), seeds)
        return [statistics.fmean(scores[start : start + seeds]) for start in starts]


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
    axes = axes_of(base.method, arguments.grid)
    out = arguments.out or Path("tuned") / base.method.replace(":", ".")
    trials = Trials(base, axes, arguments.runs or out / "runs", arguments)
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
    base = Config(**{"validation": 0.1, **settings})
    if not base.validation:
        raise ConfigError(
            "validation is 0, so nothing is held out to decide by; choose a share such as 0.1, or "
            "--decide test"
        )
    return base


def write(found: Found, trials: Trials, out: Path) -> str:
    """``best.toml``, ``grid.json`` and ``grid.png``; a summary in words."""
    best, asked = trials.config(found.best), trials.arguments
    score = found.scores[found.best]
    names = [axis.name for axis in found.axes]
    chosen = ", ".join(f"{n} = {v:g}" for n, v in zip(names, found.best, strict=True))
    verdict = (
        "no neighbour on the grid is better"
        if found.bracketed
        else f"not bracketed: the limit stopped the search at {', '.join(found.open_sides)}"
    )
    comment = (
        f"# {chosen}: accuracy {score:.4f} over seeds {list(asked.seeds)}; {verdict}; "
        f"{ABOUT[asked.decide]}\n"
    )
    # every setting that decides a result, but seed, and what was held out to search
    kept = {"method", "lr", *best.changed()} - {"seed", "workers", "validation"}
    reused = {name: value for name, value in best.as_dict().items() if name in kept}
    storage.write_text(out / "best.toml", comment + toml.written(reused))
    points = [
        {
            "point": dict(zip(names, point, strict=True)),
            "accuracy": value if math.isfinite(value) else None,
        }
        for point, value in found.scores.items()
    ]
    facts = {
        "method": best.method,
        "measure": asked.measure,
        "decided_by": asked.decide,
        "validation": trials.base.validation,
        "seeds": list(asked.seeds),
        "best": dict(zip(names, found.best, strict=True)),
        "bracketed": found.bracketed,
        "open_sides": list(found.open_sides),
        "points": points,
    }
    storage.write_json(out / "grid.json", facts)
    heat_map(out / "grid.png", found, best.method)
    return (
        f"{best.method}: {chosen}, accuracy {score:.2%} ({len(points)} points, {verdict}; "
        f"{ABOUT[asked.decide]})\n"
        f"{out / 'best.toml'}"
    )


def heat_map(path: Path, found: Found, title: str) -> None:
    """Accuracy over the first two settings, the best over any others; the winner is framed.

    What was not tried is white, what diverged is grey.
    """
    across, *more = found.axes
    rows = more[0].values if more else (0.0,)
    values = np.full((len(rows), len(across.values)), np.nan)
    diverged = np.zeros(values.shape, dtype=bool)

    def place(point: Point) -> tuple[int, int]:
        return rows.index(point[1]) if more else 0, across.values.index(point[0])

    for point, score in found.scores.items():
        if math.isfinite(score):
            values[place(point)] = np.nanmax([values[place(point)], 100 * score])
        else:
            diverged[place(point)] = True
    diverged &= np.isnan(values)
    size = (1.5 + 0.75 * len(across.values), 1.6 + 0.5 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, aspect="auto", cmap="viridis")
    axes.imshow(np.where(diverged, 0.5, np.nan), aspect="auto", cmap="gray", vmin=0, vmax=1)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        if not math.isnan(value):
            colour = "black" if value > middle else "white"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
    row, column = place(found.best)
    frame = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="red", lw=2.5)
    axes.add_patch(frame)
    axes.set_xticks(range(len(across.values)), [f"{v:g}" for v in across.values])
    axes.set_yticks(range(len(rows)), [f"{v:g}" for v in rows] if more else [""])
    axes.set(xlabel=across.name, ylabel=more[0].name if more else "", title=title)
    figure.colorbar(image, label="accuracy, %")
    save(figure, path)
