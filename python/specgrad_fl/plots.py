"""Curves as PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from specgrad_fl import atomic

Record = dict[str, Any]
PANELS = {
    "test_accuracy": "test accuracy",
    "train_loss": "training loss",
}


def save(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all."""
    with atomic.replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def curves(path: Path, runs: dict[str, list[Record]]) -> None:
    """Accuracy and loss by round of one or more runs."""
    figure = Figure(figsize=(5 * len(PANELS), 4), layout="constrained")
    for axes, (key, title) in zip(
        figure.subplots(1, len(PANELS), squeeze=False)[0], PANELS.items(), strict=True
    ):
        for name, records in runs.items():
            points = [(r["round"], r[key]) for r in records if key in r]
            axes.plot(
                *zip(*points, strict=True), label=name, marker="." if len(points) < 20 else ""
            )
        axes.set(xlabel="round", ylabel=title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    save(figure, path)
