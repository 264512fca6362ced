"""The figures of the reports. Every drawing returns the files it wrote, none without results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from specgrad_fl import plots

from specgrad_study.paper.model import Cell, Measured, Records, Results, records_of
from specgrad_study.paper.numbers import paper_numbers

OURS, PAPER = "tab:blue", "0.45"


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


def dots(name: str, cells: Sequence[Cell], results: Results, runs: Path, out: Path) -> list[Path]:
    """A table as dots: ours with one standard deviation, and the paper's."""
    columns = measured_columns(results)
    if not columns:
        return []
    rows = list(dict.fromkeys(c.row for c in cells if results[c.place].values))[::-1]
    numbers = paper_numbers(name)
    figure, panels = _panels(len(columns), 5.2, 1.7 + 0.3 * len(rows))
    for axes, column in zip(panels, columns, strict=True):
        for y, row in enumerate(rows):
            found, number = results.get((row, column)), numbers.get((row, column))
            if number is not None:
                axes.errorbar(
                    number.mean, y, xerr=number.deviation, fmt="D", ms=5, color=PAPER, mfc="none"
                )
            if found is not None and found.values:
                axes.errorbar(found.mean, y, xerr=found.deviation, fmt="o", ms=6, color=OURS)
        axes.set(title=column, xlabel="test accuracy, %", yticks=range(len(rows)))
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.set_yticklabels(rows if axes is panels[0] else [])
        axes.grid(alpha=0.3)
    handles = [
        panels[0].errorbar([], [], fmt="o", color=OURS, label="ours"),
        panels[0].errorbar([], [], fmt="D", color=PAPER, mfc="none", label="paper"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return save(figure, out / f"{name}.png")


def _plot_mean(axes: Axes, records: Records, **style: Any) -> None:
    """Accuracy by round: mean over seeds, with one standard deviation either side."""
    accuracies = [plots.points(each, "test_accuracy", 100) for each in records.values()]
    plots.plot_mean(axes, accuracies, **style)


def _by_round(path: Path, results: Results, plot_column: Callable[[Axes, str], None]) -> list[Path]:
    """One panel for each column, filled by ``plot_column``."""
    columns = measured_columns(results)
    if not columns:
        return []
    figure, panels = _panels(len(columns), 4.6, 3.6)
    for axes, column in zip(panels, columns, strict=True):
        plot_column(axes, column)
        axes.set(title=column, xlabel="round", ylabel="test accuracy, %")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    return save(figure, path)


def curves(name: str, cells: Sequence[Cell], results: Results, runs: Path, out: Path) -> list[Path]:
    """Accuracy by round, one panel for each column."""
    records = records_of(cells, runs)

    def plot_column(axes: Axes, column: str) -> None:
        for cell in cells:
            if cell.column == column and records[cell.place]:
                _plot_mean(axes, records[cell.place], label=cell.row)

    return _by_round(out / f"{name}.png", results, plot_column)


def dots_and_curves(
    name: str, cells: Sequence[Cell], results: Results, runs: Path, out: Path
) -> list[Path]:
    """The table as dots, and how its rows got there."""
    return dots(name, cells, results, runs, out) + curves(
        f"{name}-curves", cells, results, runs, out
    )


def paired_curves(
    name: str, cells: Sequence[Cell], results: Results, runs: Path, out: Path
) -> list[Path]:
    """As :func:`curves`: a method solid, itself with the filter dashed in the same colour."""
    records = records_of(cells, runs)
    bases = list(dict.fromkeys(cell.row.removesuffix(" + FFT") for cell in cells))

    def plot_column(axes: Axes, column: str) -> None:
        for number, base in enumerate(bases):
            for ending, line in (("", "-"), (" + FFT", "--")):
                found = records.get((base + ending, column))
                if found:
                    style = {"color": f"C{number}", "linestyle": line}
                    _plot_mean(axes, found, label=base + ending, **style)

    return _by_round(out / f"{name}.png", results, plot_column)


def settings(
    name: str, cells: Sequence[Cell], results: Results, runs: Path, out: Path
) -> list[Path]:
    """Accuracy against clients, local epochs and participation. Rows are ``clients 20: FedAvg``."""
    series: dict[str, dict[str, dict[float, Measured]]] = {}
    for cell in cells:
        setting, _, method = cell.row.partition(": ")
        kind, _, value = setting.partition(" ")
        if results[cell.place].values:
            points = series.setdefault(kind, {}).setdefault(method, {})
            points[float(value)] = results[cell.place]
    if not series:
        return []
    figure, panels = _panels(len(series), 4, 3.4)
    for axes, (kind, methods) in zip(panels, series.items(), strict=True):
        for method, points in methods.items():
            deviations = [p.deviation or 0 for p in points.values()]
            means = [p.mean for p in points.values()]
            axes.errorbar(list(points), means, yerr=deviations, marker="o", label=method)
        axes.set(xlabel=kind, ylabel="test accuracy, %")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    return save(figure, out / f"{name}.png")


def ratio(name: str, cells: Sequence[Cell], results: Results, runs: Path, out: Path) -> list[Path]:
    """Accuracy against the filtering ratio; FedAvg is a dashed line."""
    columns = measured_columns(results)
    if not columns:
        return []
    figure, panels = _panels(len(columns), 5, 3.6)
    for axes, column in zip(panels, columns, strict=True):
        points = {
            float(row): found
            for (row, where), found in results.items()
            if where == column and row != "FedAvg" and found.values
        }
        deviations = [found.deviation or 0 for found in points.values()]
        means = [found.mean for found in points.values()]
        axes.errorbar(list(points), means, yerr=deviations, marker="o", color=OURS, label="ours")
        base = results.get(("FedAvg", column))
        if base is not None and base.values:
            axes.axhline(base.mean, linestyle="--", color=OURS, label="FedAvg, ours")
        for row, number in paper_numbers(name).items():
            if row[1] == column and row[0] != "FedAvg":
                axes.plot(float(row[0]), number.mean, "D", color=PAPER, mfc="none", label="paper")
            elif row[1] == column:
                axes.axhline(number.mean, linestyle=":", color=PAPER, label="FedAvg, paper")
        axes.set(title=column, xlabel="filtering ratio", ylabel="test accuracy, %", xscale="log")
        axes.set_xticks(list(points), [f"{r:g}" for r in points])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    return save(figure, out / f"{name}.png")


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


def stages(path: Path, results: Results) -> list[Path]:
    """Similarity by stage, one line for each method."""
    rows = list(dict.fromkeys(row for (row, _), found in results.items() if found.values))
    if not rows:
        return []
    figure, (axes,) = _panels(1, 5.5, 3.6)
    for row in rows:
        points = {s: found for (r, s), found in results.items() if r == row and found.values}
        means = [found.mean for found in points.values()]
        deviations = [found.deviation or 0 for found in points.values()]
        axes.errorbar(list(points), means, yerr=deviations, marker="o", capsize=3, label=row)
    axes.set(ylabel="CKA between local models", xlabel="stage")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return save(figure, path)
