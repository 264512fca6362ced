"""The grid of a search as a heat map."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from specgrad_fl.plots import save

from specgrad_study.tuning.search import Found


def heat_map(path: Path, found: Found, title: str) -> None:
    """Accuracy over the first two settings, the best over any others; the winner is framed.

    What was not tried is white, what diverged is grey.
    """
    across = found.axes[0]
    down = found.axes[1] if len(found.axes) > 1 else None
    rows = down.values if down else (0.0,)
    values = np.full((len(rows), len(across.values)), np.nan)
    diverged = np.zeros(values.shape, dtype=bool)
    for point, score in found.scores.items():
        row = rows.index(point[1]) if down else 0
        column = across.values.index(point[0])
        if math.isfinite(score):
            values[row, column] = np.nanmax([values[row, column], 100 * score])
        else:
            diverged[row, column] = True
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
    best = (across.values.index(found.best[0]), rows.index(found.best[1]) if down else 0)
    axes.add_patch(_frame(best))
    axes.set_xticks(range(len(across.values)), [f"{v:g}" for v in across.values])
    axes.set_yticks(range(len(rows)), [f"{v:g}" for v in rows] if down else [""])
    axes.set(xlabel=across.name, ylabel=down.name if down else "", title=title)
    figure.colorbar(image, label="accuracy, %")
    save(figure, path)


def _frame(place: tuple[int, int]) -> Rectangle:
    return Rectangle((place[0] - 0.5, place[1] - 0.5), 1, 1, fill=False, edgecolor="red", lw=2.5)
