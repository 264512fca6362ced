"""Curves as PNG files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specgrad_fl import storage
from specgrad_fl.errors import RunError
from specgrad_fl.records import Record
from specgrad_fl.runs import RunDirectory

ACCURACY = ("validation_accuracy", "test_accuracy")
PANELS = {
    ACCURACY: "accuracy",
    ("train_loss",): "training loss",
}
FEW = 20
# in every picture, to tell them from a user's own
DRAWN_BY = "specgrad-fl"


def save(figure: Figure, path: Path, dpi: int = 120) -> None:
    """Write a figure, whole or not at all."""
    with storage.replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi, metadata={"Software": DRAWN_BY})


def check_free(path: Path) -> None:
    """Refuse to draw into a run, or over anything but an earlier picture."""
    if RunDirectory(path.parent).exists:
        raise RunError(f"{path} would be written into a run; choose another --out")
    try:
        with path.open("rb") as file:
            ours = DRAWN_BY.encode() in file.read(1000)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage.cannot_write(path, error) from error
    if not ours:
        raise RunError(f"{path} exists and specgrad-fl did not draw it; choose another --out")


def _panels(figure: Figure, held_out: bool) -> Iterator[tuple[Axes, str]]:
    """One labelled pair of axes for each quantity."""
    grid = figure.subplots(1, len(PANELS), squeeze=False)[0]
    for axes, (keys, title) in zip(grid, PANELS.items(), strict=True):
        yield axes, keys[0 if held_out else -1]
        if keys is ACCURACY:
            title += " on held-out samples" if held_out else " on the test set"
        axes.set(xlabel="round", ylabel=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")


def _figure() -> Figure:
    return Figure(figsize=(5 * len(PANELS), 4), layout="constrained")


def _held_out(records: list[Record]) -> bool:
    return any(ACCURACY[0] in record for record in records)


def points(records: list[Record], key: str, factor: float = 1.0) -> dict[int, float]:
    """A quantity by round, where it was measured."""
    return {r["round"]: factor * r[key] for r in records if key in r}


def _marker(points: Collection[Any]) -> str:
    """A few points are shown as such: a line through one of them would be invisible."""
    return "o" if len(points) <= FEW else ""


def plot_mean(axes: Axes, curves: list[dict[int, float]], **style: Any) -> None:
    """The mean of curves, with one standard deviation either side."""
    rounds = [r for r in curves[0] if all(r in curve for curve in curves)]
    values = np.array([[curve[r] for r in rounds] for curve in curves])
    mean, deviation = values.mean(0), values.std(0, ddof=1 if len(curves) > 1 else 0)
    (line,) = axes.plot(rounds, mean, marker=_marker(rounds), **style)
    axes.fill_between(rounds, mean - deviation, mean + deviation, color=line.get_color(), alpha=0.2)


def curves(path: Path, runs: dict[str, list[Record]]) -> None:
    """Accuracy and loss by round of one or more runs."""
    figure = _figure()
    for axes, key in _panels(figure, all(map(_held_out, runs.values()))):
        for name, records in runs.items():
            curve = points(records, key)
            axes.plot(list(curve), list(curve.values()), marker=_marker(curve), label=name)
    save(figure, path)


def bands(path: Path, groups: dict[str, list[list[Record]]]) -> None:
    """Mean over the runs of each group, with one standard deviation either side."""
    figure = _figure()
    checked = all(_held_out(records) for runs in groups.values() for records in runs)
    for axes, key in _panels(figure, checked):
        for name, runs in groups.items():
            each = [points(records, key) for records in runs]
            seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
            plot_mean(axes, each, label=f"{name} ({seeds})")
    save(figure, path)


def clients(path: Path, runs: dict[str, list[float]]) -> None:
    """The accuracy on each client's own held-out samples, from the worst client to the best."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, accuracies in runs.items():
        share = [100 * (place + 0.5) / len(accuracies) for place in range(len(accuracies))]
        axes.plot(share, sorted(accuracies), marker=_marker(accuracies), label=name)
    axes.set(xlabel="clients, %", ylabel="accuracy on own held-out samples", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save(figure, path)
