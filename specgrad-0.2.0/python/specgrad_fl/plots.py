"""Curves as PNG files."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specgrad_fl import storage
from specgrad_fl.errors import RunError, printable
from specgrad_fl.records import Record
from specgrad_fl.runs import RunDirectory

FEW = 20
# in every picture, to tell them from a user's own
DRAWN_BY = "specgrad-fl"


def save(figure: Figure, path: Path, dpi: int = 120) -> None:
    """Write a figure atomically; matplotlib's warnings about fonts and layout are dropped."""
    with storage.replacing(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
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


def legend_name(name: str) -> str:
    r"""A name as text: matplotlib typesets what is between dollars, and hides a leading underscore.

    >>> legend_name("$x$"), legend_name("_run")
    ('\\$x\\$', ' _run')
    """
    text = printable(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def points(records: list[Record], key: str, factor: float = 1.0) -> dict[int, float]:
    """A quantity by round, where it was measured."""
    return {r["round"]: factor * r[key] for r in records if key in r}


def _marker(points: Collection[Any]) -> str:
    """Show few points as markers: a line through one of them would be invisible."""
    return "o" if len(points) <= FEW else ""


def plot_mean(axes: Axes, curves: list[dict[int, float]], **style: Any) -> None:
    """The mean of curves, with one standard deviation either side."""
    rounds = [r for r in curves[0] if all(r in curve for curve in curves)]
    values = np.array([[curve[r] for r in rounds] for curve in curves])
    mean = values.mean(0)
    (line,) = axes.plot(rounds, mean, marker=_marker(rounds), **style)
    if len(curves) > 1:
        low, high = mean - values.std(0, ddof=1), mean + values.std(0, ddof=1)
        axes.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2)


def _draw(path: Path, groups: dict[str, list[list[Record]]]) -> None:
    """Accuracy and loss by round, one line for each group of runs."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = {"test_accuracy": "Accuracy on the test set"}
    every = [records for runs in groups.values() for records in runs]
    if all(any("validation_accuracy" in record for record in records) for records in every):
        panels = {"validation_accuracy": "Accuracy on held-out samples"}
    panels["train_loss"] = "Training loss"
    for axes, (key, title) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        percent = key != "train_loss"
        for name, runs in groups.items():
            factor = 100.0 if percent else 1.0
            curves = [points(records, key, factor) for records in runs]
            plot_mean(axes, curves, label=legend_name(name))
        unit = "accuracy, %" if percent else "cross-entropy, nats"
        axes.set(title=title, xlabel="round", ylabel=unit)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    save(figure, path)


def curves(path: Path, runs: dict[str, list[Record]]) -> None:
    """Accuracy and loss by round of one or more runs."""
    _draw(path, {name: [records] for name, records in runs.items()})


def bands(path: Path, groups: dict[str, list[list[Record]]]) -> None:
    """Mean over the runs of each group, with one standard deviation either side."""
    named = {}
    for name, runs in groups.items():
        seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
        named[f"{name} ({seeds})"] = runs
    _draw(path, named)


def clients(path: Path, runs: dict[str, list[float]]) -> None:
    """The accuracy on each client's own held-out samples, from the worst client to the best."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, accuracies in runs.items():
        share = [100 * (place + 0.5) / len(accuracies) for place in range(len(accuracies))]
        ordered = [100 * accuracy for accuracy in sorted(accuracies)]
        axes.plot(share, ordered, marker=_marker(accuracies), label=legend_name(name))
    axes.set(title="Accuracy on each client's own held-out samples", ylim=(0, 100))
    axes.set(xlabel="clients from the worst to the best, %", ylabel="accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save(figure, path)
