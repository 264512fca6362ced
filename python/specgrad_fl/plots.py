"""Curves as PNG files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specgrad_fl import atomic
from specgrad_fl.records import Record

PANELS = {
    "test_accuracy": "test accuracy",
    "train_loss": "training loss",
}


def save(figure: Figure, path: Path, dpi: int = 120) -> None:
    """Write a figure, whole or not at all."""
    with atomic.replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi)


def _panels(figure: Figure) -> Iterator[tuple[Axes, str]]:
    """One labelled pair of axes for each quantity."""
    grid = figure.subplots(1, len(PANELS), squeeze=False)[0]
    for axes, (key, title) in zip(grid, PANELS.items(), strict=True):
        yield axes, key
        axes.set(xlabel="round", ylabel=title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")


def _figure() -> Figure:
    return Figure(figsize=(5 * len(PANELS), 4), layout="constrained")


def points(records: list[Record], key: str, factor: float = 1.0) -> dict[int, float]:
    """A quantity by round, where it was measured."""
    return {r["round"]: factor * r[key] for r in records if key in r}


def plot_mean(axes: Axes, curves: list[dict[int, float]], **style: Any) -> None:
    """The mean of curves, with one standard deviation either side."""
    rounds = [r for r in curves[0] if all(r in curve for curve in curves)]
    values = np.array([[curve[r] for r in rounds] for curve in curves])
    mean, deviation = values.mean(0), values.std(0, ddof=1 if len(curves) > 1 else 0)
    (line,) = axes.plot(rounds, mean, **style)
    axes.fill_between(rounds, mean - deviation, mean + deviation, color=line.get_color(), alpha=0.2)


def curves(path: Path, runs: dict[str, list[Record]]) -> None:
    """Accuracy and loss by round of one or more runs."""
    figure = _figure()
    for axes, key in _panels(figure):
        for name, records in runs.items():
            curve = points(records, key)
            axes.plot(list(curve), list(curve.values()), label=name)
    save(figure, path)


def bands(path: Path, groups: dict[str, list[list[Record]]]) -> None:
    """Mean over the runs of each group, with one standard deviation either side."""
    figure = _figure()
    for axes, key in _panels(figure):
        for name, runs in groups.items():
            each = [points(records, key) for records in runs]
            plot_mean(axes, each, label=f"{name} ({len(runs)} seeds)")
    save(figure, path)
