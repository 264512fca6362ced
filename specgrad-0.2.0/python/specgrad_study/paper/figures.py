"""Figures of the reports: each drawing returns the files it wrote with their captions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from specgrad_fl import plots

from specgrad_study.paper.archive import Archive
from specgrad_study.paper.claims import LEAST_SEEDS, Interval
from specgrad_study.paper.published import paper_numbers

if TYPE_CHECKING:
    from specgrad_study.paper.experiment import Part

FILTERED = " + FFT"
OURS, PAPER = "tab:blue", "0.35"
# inches: at the dpi below, as wide as a page of text
WIDTH, DPI = 9.0, 110
# by seed, accuracy in percent after rounds
Curves = dict[int, dict[int, float]]
Drawn = list[tuple[Path, str]]


def save(figure: Figure, path: Path, caption: str) -> Drawn:
    """Write a PNG of the width of a page."""
    plots.save(figure, path, dpi=DPI)
    return [(path, caption)]


def gains(part: Part, archive: Archive, out: Path) -> Drawn:
    """Paired differences to the baseline: a dot for each seed, the interval where it counts.

    One panel for each column, one below the other on one scale.
    """
    pairs = {column: found for column in part.measured_columns if (found := part.paired(column))}
    if not pairs:
        return []
    counts = [len(rows) for rows in pairs.values()]
    figure = Figure((WIDTH, 1.3 + 0.27 * sum(counts) + 0.55 * len(counts)), layout="constrained")
    panels = figure.subplots(
        len(pairs), 1, sharex=True, squeeze=False, height_ratios=[count + 0.4 for count in counts]
    )[:, 0]
    legend: dict[str, Any] = {}
    for axes, (column, rows) in zip(panels, pairs.items(), strict=True):
        for y, row in enumerate(reversed(rows)):
            legend |= _gain(axes, y, part, row, column)
        axes.axvline(0, color="black", lw=0.8)
        axes.set_title(part.preset.shown(column), fontsize="medium", loc="left")
        axes.set_yticks(range(len(rows)), [part.label(row) for row in reversed(rows)])
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.grid(alpha=0.3)
    # rows are compared within their groups: "clients 100: FedAvg" is FedAvg there
    bases = {base.rpartition(": ")[2] for rows in pairs.values() for base in rows.values()}
    against = "the same without the filter" if len(bases) > 1 else bases.pop()
    # a hundredth of a point fills no axis
    low, high = panels[-1].get_xlim()
    panels[-1].set_xlim(min(low, -1), max(high, 1))
    panels[-1].set_xlabel(f"{part.experiment.unit}, more than {against}")
    figure.suptitle(part.heading)
    figure.legend(
        list(legend.values()),
        list(legend),
        loc="outside lower center",
        ncols=len(legend),
        fontsize="small",
    )
    told = "; ".join(f"{mark}: {what}" for what, mark in MARKS.items() if what in legend)
    caption = f"{part.heading}: {part.experiment.unit}, more than {against}. {told}."
    return save(figure, out / f"{part.experiment.name}.png", caption)


SEED, INTERVAL, THEIRS = "one seed", f"95 % interval, {LEAST_SEEDS} seeds or more", "the paper"
MARKS = {SEED: "Dots", INTERVAL: "bars", THEIRS: "diamonds"}


def _gain(axes: Axes, y: int, part: Part, row: str, column: str) -> dict[str, Any]:
    """Draw one row of differences; the marks that were drawn, by their meaning."""
    numbers, base = paper_numbers(part.experiment.name), part.experiment.baseline(row) or ""
    apart = part.apart(row, column)
    drawn: dict[str, Any] = {}
    (drawn[SEED],) = axes.plot(
        list(apart.values()), [y] * len(apart), "o", ms=5, color=OURS, alpha=0.5
    )
    if len(apart) >= LEAST_SEEDS:
        interval = Interval.of(apart)
        drawn[INTERVAL] = axes.errorbar(
            interval.mean, y, xerr=interval.half, fmt="|", color=OURS, capsize=4, ms=9
        )
    theirs = [numbers.get((each, column)) for each in (row, base)]
    if theirs[0] and theirs[1]:
        gain = theirs[0].mean - theirs[1].mean
        (drawn[THEIRS],) = axes.plot(gain, y, "D", ms=6, color=PAPER, mfc="none")
    return drawn


def shared_seeds(curves: Sequence[Curves]) -> list[int]:
    """Seeds that all curves have.

    >>> shared_seeds([{0: {}, 1: {}}, {1: {}}]), shared_seeds([{0: {}}, {1: {}}])
    ([1], [])
    """
    return sorted(set.intersection(*map(set, curves)))


def curves(part: Part, archive: Archive, out: Path) -> Drawn:
    """Accuracy by round, the mean over seeds that all rows of a column share.

    Where they share none, every row has its own seeds, and the legend says which. A method with
    the filter has the colour of the method, and is dashed.
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
    figure = Figure((WIDTH, 0.7 + 4.2 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    for axes, (column, rows) in zip(panels, found.items(), strict=True):
        seeds = shared_seeds(list(rows.values()))
        for row, label, each in _labelled(rows, seeds):
            colour = f"C{methods.index(row.removesuffix(FILTERED))}"
            dashes = "--" if row.endswith(FILTERED) else "-"
            plots.plot_mean(axes, each, label=label, color=colour, linestyle=dashes, ms=4)
        title = part.preset.shown(column) + (_told(seeds) if seeds else "")
        axes.set_title(title, fontsize="medium", loc="left")
        axes.set(xlabel="round", ylabel="test accuracy, %")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.suptitle(part.heading)
    caption = (
        f"{part.heading}: test accuracy in percent by round, the mean over seeds; shaded: one "
        "standard deviation. Dashed: with the filter."
    )
    return save(figure, out / f"{part.experiment.name}-curves.png", caption)


def _labelled(
    rows: Mapping[str, Curves], seeds: Sequence[int]
) -> Iterator[tuple[str, str, list[dict[int, float]]]]:
    """Each row, its label, and its curves: of shared seeds, or else of its own."""
    for row, known in rows.items():
        yield row, row if seeds else row + _told(known), [known[seed] for seed in seeds or known]


def _told(seeds: Collection[int]) -> str:
    return f" (seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))})"
