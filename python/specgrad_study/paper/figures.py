"""The figures of the reports. Every drawing returns the files it wrote, none without results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from specgrad_fl import plots

from specgrad_study.paper.claims import LEAST_SEEDS
from specgrad_study.paper.model import Cell, Experiment, Measured, Results
from specgrad_study.paper.numbers import paper_numbers
from specgrad_study.paper.shelf import Shelf

OURS, PAPER = "tab:blue", "0.45"
# by seed, accuracy in percent after rounds
Curves = dict[int, dict[int, float]]


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a small PNG."""
    plots.save(figure, path, dpi=90)
    return [path]


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def measured_columns(results: Results) -> list[str]:
    """Columns with at least one result, in the order of the table."""
    columns = dict.fromkeys(place[1] for place in results)
    return [c for c in columns if any(results[p].values for p in results if p[1] == c)]


def _paired(experiment: Experiment, results: Results, column: str) -> dict[str, str]:
    """Rows of a column that share a seed with their baseline, and that baseline."""
    pairs = {}
    for (row, where), found in results.items():
        base = experiment.baseline(row)
        if where == column and base and found.over(results.get((base, column), Measured())):
            pairs[row] = base
    return pairs


def gains(
    experiment: Experiment, cells: Sequence[Cell], results: Results, shelf: Shelf, out: Path
) -> list[Path]:
    """Paired differences to the baseline: a dot for each seed, the interval where it counts."""
    pairs = {c: _paired(experiment, results, c) for c in measured_columns(results)}
    pairs = {column: found for column, found in pairs.items() if found}
    if not pairs:
        return []
    numbers = paper_numbers(experiment.name)
    figure, panels = _panels(len(pairs), 5.4, 1.7 + 0.3 * max(map(len, pairs.values())))
    for axes, (column, rows) in zip(panels, pairs.items(), strict=True):
        for y, (row, base) in enumerate(reversed(rows.items())):
            theirs = [numbers.get((each, column)) for each in (row, base)]
            if theirs[0] and theirs[1]:
                axes.plot(theirs[0].mean - theirs[1].mean, y, "D", ms=5, color=PAPER, mfc="none")
            _plot_paired(axes, y, results[row, column], results[base, column])
        axes.axvline(0, color="black", lw=0.8)
        bases = ", ".join(dict.fromkeys(rows.values()))
        against = bases if len(bases) < 40 else "the row without the filter"
        axes.set(title=column, xlabel=f"{experiment.unit}\nmore than {against}")
        axes.set_yticks(range(len(rows)), list(rows)[::-1])
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.grid(alpha=0.3)
    handles = [
        panels[0].plot([], [], "o", ms=4, color=OURS, alpha=0.5, label="ours, one seed")[0],
        panels[0].errorbar([], [], xerr=[], color=OURS, label="95 % interval, 3 seeds or more"),
        panels[0].plot([], [], "D", color=PAPER, mfc="none", label="paper")[0],
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize="small")
    return save(figure, out / f"{experiment.name}.png")


def _plot_paired(axes: Axes, y: float, found: Measured, base: Measured) -> None:
    shared = sorted(set(found.values) & set(base.values))
    apart = [found.values[seed] - base.values[seed] for seed in shared]
    axes.plot(apart, [y] * len(apart), "o", ms=4, color=OURS, alpha=0.5)
    interval = found.over(base)
    if interval and interval.half is not None and interval.seeds >= LEAST_SEEDS:
        axes.errorbar(interval.mean, y, xerr=interval.half, fmt="|", color=OURS, capsize=3)


def _curves_of(cells: Sequence[Cell], shelf: Shelf) -> dict[tuple[str, str], Curves]:
    """The curves of every run whose rounds are known, by place and seed."""
    return {
        cell.place: {
            seed: {number: 100 * value for number, value in run.evaluations.items()}
            for seed, run in cell.finished(shelf).items()
            if run.evaluations
        }
        for cell in cells
    }


def shared_seeds(curves: Sequence[Curves]) -> list[int]:
    """Seeds that all curves have; where there is none, the one that most have.

    >>> shared_seeds([{0: {}, 1: {}}, {1: {}}]), shared_seeds([{0: {}}, {0: {}}, {1: {}}])
    ([1], [0])
    """
    held = [set(each) for each in curves if each]
    if not held:
        return []
    common = sorted(set.intersection(*held))
    every = sorted(set.union(*held))
    return common or [max(every, key=lambda seed: sum(seed in each for each in held))]


def _by_round(
    path: Path, found: dict[tuple[str, str], Curves], style: Callable[[str], dict[str, Any]]
) -> list[Path]:
    """One panel for each column: the mean over seeds that all its rows have."""
    columns = list(dict.fromkeys(c for (_, c), curves in found.items() if curves))
    if not columns:
        return []
    figure, panels = _panels(len(columns), 4.6, 3.6)
    for axes, column in zip(panels, columns, strict=True):
        rows = {row: curves for (row, where), curves in found.items() if where == column}
        seeds = shared_seeds(list(rows.values()))
        for row, curves in rows.items():
            if all(seed in curves for seed in seeds):
                plots.plot_mean(axes, [curves[s] for s in seeds], label=row, **style(row))
        shown = ", ".join(map(str, seeds))
        axes.set(title=column, xlabel=f"round (seeds {shown})", ylabel="test accuracy, %")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    return save(figure, path)


def curves(
    experiment: Experiment, cells: Sequence[Cell], results: Results, shelf: Shelf, out: Path
) -> list[Path]:
    """Accuracy by round, one panel for each column."""
    path = out / f"{experiment.name}-curves.png"
    return _by_round(path, _curves_of(cells, shelf), lambda row: {})


def gains_and_curves(
    experiment: Experiment, cells: Sequence[Cell], results: Results, shelf: Shelf, out: Path
) -> list[Path]:
    """Paired differences, and how the rows got there."""
    drawn = gains(experiment, cells, results, shelf, out)
    return drawn + curves(experiment, cells, results, shelf, out)


def paired_curves(
    experiment: Experiment, cells: Sequence[Cell], results: Results, shelf: Shelf, out: Path
) -> list[Path]:
    """As :func:`curves`: a method solid, itself with the filter dashed in the same colour."""
    bases = list(dict.fromkeys(cell.row.removesuffix(" + FFT") for cell in cells))

    def style(row: str) -> dict[str, Any]:
        number = bases.index(row.removesuffix(" + FFT"))
        return {"color": f"C{number}", "linestyle": "--" if row.endswith(" + FFT") else "-"}

    return _by_round(out / f"{experiment.name}-curves.png", _curves_of(cells, shelf), style)


def ratio(
    experiment: Experiment, cells: Sequence[Cell], results: Results, shelf: Shelf, out: Path
) -> list[Path]:
    """Paired differences to FedAvg against the filtering ratio."""
    columns = [c for c in measured_columns(results) if _paired(experiment, results, c)]
    if not columns:
        return []
    numbers = paper_numbers(experiment.name)
    figure, panels = _panels(len(columns), 5, 3.6)
    for axes, column in zip(panels, columns, strict=True):
        for row, base in _paired(experiment, results, column).items():
            found, below = results[row, column], results[base, column]
            interval = found.over(below)
            assert interval is not None
            shared = sorted(set(found.values) & set(below.values))
            apart = [found.values[seed] - below.values[seed] for seed in shared]
            axes.plot([float(row)] * len(apart), apart, "o", ms=4, color=OURS, alpha=0.5)
            if interval.half is not None and interval.seeds >= LEAST_SEEDS:
                axes.errorbar(
                    float(row), interval.mean, yerr=interval.half, fmt="_", color=OURS, capsize=3
                )
            theirs = [numbers.get((each, column)) for each in (row, base)]
            if theirs[0] and theirs[1]:
                gain = theirs[0].mean - theirs[1].mean
                axes.plot(float(row), gain, "D", color=PAPER, mfc="none", label="paper")
        ticks = [float(row) for row in _paired(experiment, results, column)]
        axes.set(title=column, xlabel="filtering ratio", xscale="log")
        axes.set(ylabel="points more than FedAvg")
        axes.set_xticks(ticks, [f"{r:g}" for r in ticks], rotation=60, fontsize="x-small")
        axes.minorticks_off()
        axes.axhline(0, color="black", lw=0.8)
        axes.grid(alpha=0.3)
    return save(figure, out / f"{experiment.name}.png")


def bands(path: Path, energies: dict[str, list[float]]) -> list[Path]:
    """Disagreement by frequency band: energy above, share in percent below."""
    if not energies:
        return []
    figure = Figure(figsize=(6, 5.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for label, energy in energies.items():
        places = range(1, len(energy) + 1)
        upper.plot(places, energy, marker="o", label=label)
        lower.plot(places, [100 * each / sum(energy) for each in energy], marker="o", label=label)
    upper.set(ylabel="disagreement energy", yscale="log")
    lower.set(ylabel="share, %", xlabel="frequency band, low to high", xticks=list(places))
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    return save(figure, path)
