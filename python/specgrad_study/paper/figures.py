"""The figures of the reports. Every drawing returns the files it wrote, none without results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from specgrad_fl import plots

from specgrad_study.paper.archive import Archive
from specgrad_study.paper.claims import LEAST_SEEDS, Interval
from specgrad_study.paper.numbers import paper_numbers

if TYPE_CHECKING:
    from specgrad_study.paper.experiment import Part

FILTERED = " + FFT"
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


def gains(part: Part, archive: Archive, out: Path) -> list[Path]:
    """Paired differences to the baseline: a dot for each seed, the interval where it counts."""
    pairs = {column: found for column in part.measured_columns if (found := part.paired(column))}
    if not pairs:
        return []
    numbers = paper_numbers(part.experiment.name)
    figure, panels = _panels(len(pairs), 5.4, 1.7 + 0.3 * max(map(len, pairs.values())))
    for axes, (column, rows) in zip(panels, pairs.items(), strict=True):
        for y, (row, base) in enumerate(reversed(rows.items())):
            theirs = [numbers.get((each, column)) for each in (row, base)]
            if theirs[0] and theirs[1]:
                axes.plot(theirs[0].mean - theirs[1].mean, y, "D", ms=5, color=PAPER, mfc="none")
            apart = part.apart(row, column)
            axes.plot(list(apart.values()), [y] * len(apart), "o", ms=4, color=OURS, alpha=0.5)
            if len(apart) >= LEAST_SEEDS:
                interval = Interval.of(apart)
                axes.errorbar(interval.mean, y, xerr=interval.half, fmt="|", color=OURS, capsize=3)
        axes.axvline(0, color="black", lw=0.8)
        bases = ", ".join(dict.fromkeys(rows.values()))
        against = bases if len(bases) < 40 else "the row without the filter"
        axes.set(title=column, xlabel=f"{part.experiment.unit}\nmore than {against}")
        axes.set_yticks(range(len(rows)), list(rows)[::-1])
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.grid(alpha=0.3)
    handles = [
        panels[0].plot([], [], "o", ms=4, color=OURS, alpha=0.5, label="ours, one seed")[0],
        panels[0].errorbar([], [], xerr=[], color=OURS, label="95 % interval, 3 seeds or more"),
        panels[0].plot([], [], "D", color=PAPER, mfc="none", label="paper")[0],
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize="small")
    return save(figure, out / f"{part.experiment.name}.png")


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


def curves(part: Part, archive: Archive, out: Path) -> list[Path]:
    """Accuracy by round, the mean over seeds that all rows of a column have.

    A method with the filter has the colour of the method, and is dashed.
    """
    found: dict[str, dict[str, Curves]] = {}
    for cell in part.cells:
        known = {
            seed: {number: 100 * value for number, value in run.evaluations.items()}
            for seed, run in cell.finished(archive).items()
            if run.evaluations
        }
        if known:
            found.setdefault(cell.column, {})[cell.row] = known
    if not found:
        return []
    methods = list(dict.fromkeys(cell.row.removesuffix(FILTERED) for cell in part.cells))
    figure, panels = _panels(len(found), 4.6, 3.6)
    for axes, (column, rows) in zip(panels, found.items(), strict=True):
        seeds = shared_seeds(list(rows.values()))
        for row, known in rows.items():
            if all(seed in known for seed in seeds):
                colour = f"C{methods.index(row.removesuffix(FILTERED))}"
                dashes = "--" if row.endswith(FILTERED) else "-"
                each = [known[seed] for seed in seeds]
                plots.plot_mean(axes, each, label=row, color=colour, linestyle=dashes)
        shown = ", ".join(map(str, seeds))
        axes.set(title=column, xlabel=f"round (seeds {shown})", ylabel="test accuracy, %")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    return save(figure, out / f"{part.experiment.name}-curves.png")
