"""The spectral filter beside the channel means that it removes: an experiment of ours.

Removing the low end of a flattened kernel's spectrum removes, above all, the mean of each output
filter. Gradient centralisation removes that mean and nothing more. Contenders are trained in the
same federation, and their effect on the gradients of FedAvg's clients is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from specgrad_study.diagnosis.collect import FULL, Checkpoint
from specgrad_study.diagnosis.sharpness import UNFILTERED
from specgrad_study.paper import drift, figures
from specgrad_study.paper.archive import Archive, Results
from specgrad_study.paper.claims import Claim, above, close, each_above
from specgrad_study.paper.drift import BEYOND, CENTRALIZE, FFT, FILTERS, MECHANISM, NONE
from specgrad_study.paper.experiment import (
    Cell,
    Context,
    Experiment,
    Part,
    accuracies,
    against,
    grid,
)
from specgrad_study.paper.presets import Preset

MAIN = "CIFAR-10, alpha 0.1"
SHARPNESS = "sharpness"
# contenders by what came out on CIFAR-10 at alpha 0.1
GAINLESS = ("mean of the layer", "mean of each input channel", BEYOND)
GAINING = tuple(label for label in FILTERS if label not in GAINLESS)


def _cells(preset: Preset) -> list[Cell]:
    cells = grid(preset, {MAIN: {}}, MECHANISM)
    for column, federation in preset.other_scenarios.items():
        for cell in grid(preset, {column: {}}, MECHANISM):
            if cell.config and (not federation.few or cell.row in (NONE, FFT, CENTRALIZE)):
                config = cell.config.replace(**federation.settings)
                cells.append(Cell(cell.row, column, config, tuple(range(federation.seeds))))
    return cells


def _diagnosed(cells: Sequence[Cell]) -> Cell:
    """The run along which the effect of all contenders is measured: FedAvg's."""
    return next(cell for cell in cells if cell.place == (NONE, MAIN))


def reading(cells: Sequence[Cell], archive: Archive, measure: str) -> Results:
    """Accuracies, and what each contender removes from the gradients of FedAvg's clients."""
    results = accuracies(cells, archive, measure)
    cell = _diagnosed(cells)
    known = drift.found(cell, archive)
    for what in ("disagreement", "mean gradient"):
        for label in FILTERS:
            left = drift.measured(cell, known, drift.left, FULL, label, what)
            removed = {seed: 100 - value for seed, value in left.values.items()}
            results[label, f"{what} removed, %"] = replace(left, values=removed)
    for label in drift.SHARP:
        results[label, SHARPNESS] = drift.measured(cell, known, _sharpness, label)
    return results


def _sharpness(checkpoints: Sequence[Checkpoint], label: str) -> float | None:
    """The mean over rounds."""
    known = [each.sharpness[label] for each in checkpoints if label in each.sharpness]
    return statistics.fmean(known) if known else None


def _measure(cells: Sequence[Cell], context: Context) -> None:
    drift.measure([_diagnosed(cells)], context)


def _draw_sharpness(part: Part, archive: Archive, out: Path) -> figures.Drawn:
    """Gain of each contender over how sharp the loss is for its steps: a dot for each seed."""
    figure = Figure(figsize=(figures.WIDTH, 5), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(MECHANISM):
        base = part.results[NONE, MAIN].values
        gains = part.apart(row, MAIN) if row != NONE else dict.fromkeys(base, 0.0)
        sharp = part.results[UNFILTERED if row == NONE else row, SHARPNESS].values
        seeds = sorted(gains.keys() & sharp.keys())
        if seeds:
            colour = "black" if row == NONE else f"C{number - 1}"
            values = [[held[seed] for seed in seeds] for held in (sharp, gains)]
            axes.plot(*values, "os^"[number % 3], color=colour, label=row, alpha=0.8, ms=7)
    if not axes.lines:
        return []
    config = _diagnosed(part.cells).config
    if config:
        axes.axvline(2 / config.lr, color="black", lw=0.8, ls="--", label="2 / learning rate")
    axes.set_xlabel("sharpness along FedAvg's run, mean over clients and rounds")
    axes.set_ylabel(f"{part.experiment.unit}\nmore than {NONE}")
    axes.set_title("Gain by the sharpness that a contender's steps meet")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", fontsize="small")
    caption = (
        f"Gain over no filter in {MAIN}, by the largest curvature that steps through each "
        "contender meet along FedAvg's run. A dot for each seed."
    )
    return figures.save(figure, out / f"{part.experiment.name}-sharpness.png", caption)


EXPERIMENT = Experiment(
    name="mechanism",
    title="What does the work?",
    reference="ours, not the paper's",
    table=_cells,
    claims=(
        Claim(
            "removing the mean of each output channel improves FedAvg",
            contrasts=(above(CENTRALIZE, NONE),),
        ),
        Claim("the spectral filter improves FedAvg", contrasts=(above(FFT, NONE),)),
        Claim(
            "the spectral filter is better than removing the mean of each output channel",
            contrasts=(above(FFT, CENTRALIZE),),
        ),
        Claim(
            "what the spectral filter removes besides those means gains nothing by itself",
            contrasts=(close(BEYOND, NONE, 1),),
            margin="1 point for nothing",
        ),
        Claim(
            "removing the mean of the whole layer gains nothing",
            contrasts=(close("mean of the layer", NONE, 1),),
            margin="1 point for nothing",
        ),
        Claim(
            "steps through the spectral filter, or without the means, meet a less sharp loss",
            contrasts=each_above((UNFILTERED,), (FFT, CENTRALIZE)),
            columns=(SHARPNESS,),
        ),
        Claim(
            "whatever gains meets a less sharp loss than what does not",
            contrasts=each_above((UNFILTERED, *GAINLESS), GAINING),
            columns=(SHARPNESS,),
        ),
    ),
    draws=(figures.gains, _draw_sharpness),
    reading=reading,
    measure=_measure,
    baseline=against(NONE),
    ours=True,
    note=(
        "Contenders: the spectral filter at several ratios; the mean of each output channel "
        "(centralize), of each kernel, of the layer, of each input channel; both one after the "
        "other; and the spectral filter with the means of the output channels put back. Removed "
        "shares are those of the filtered layers' disagreement and mean gradient, from a full "
        "pass over the samples of the clients that are active in FedAvg's run, the mean over "
        "rounds. Sharpness is the largest eigenvalue of filter times Hessian for the loss of one "
        "mini-batch, the mean over the same clients and rounds."
    ),
)
