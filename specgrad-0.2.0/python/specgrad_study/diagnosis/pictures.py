"""Pictures of a diagnosis, each with a title and units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from specgrad_fl.plots import save

from specgrad_study.diagnosis.collect import Checkpoint
from specgrad_study.diagnosis.report import Diagnosis
from specgrad_study.diagnosis.snapshot import Snapshot
from specgrad_study.diagnosis.spectra import BANDS, RATIOS


def bands(path: Path, energies: Mapping[str, Sequence[float]]) -> None:
    """Spectral bias of drift: disagreement by band, absolute above and as shares below.

    energies: by label, such as a Dirichlet alpha, the mean energy of each band
    """
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    places = range(1, BANDS + 1)
    for label, values in energies.items():
        whole = sum(values) or 1.0
        above.plot(places, values, marker="o", label=label)
        below.plot(places, [100 * value / whole for value in values], marker="o", label=label)
    below.axhline(100 / BANDS, color="black", lw=0.8, ls="--", label="spread evenly")
    above.set(ylabel="energy, squared gradient units", yscale="log")
    above.set_title("Disagreement of clients by frequency band")
    below.set(ylabel="share of all bands, %", xlabel="frequency band, low to high", xticks=places)
    above.grid(alpha=0.3)
    below.grid(alpha=0.3)
    below.legend(fontsize="small")  # above, it would hide the middle bands
    save(figure, path)


def layers(path: Path, diagnosis: Diagnosis) -> None:
    """Share of each band in each layer's disagreement, with the recommended ratio beside it."""
    first = diagnosis.snapshots[0].layers
    named = [name for name, layer in first.items() if layer.has_bands]
    shares = []
    for name in named:
        rounds = [snapshot.layers[name].bands() for snapshot in diagnosis.snapshots]
        energies = torch.stack(rounds).sum(0)
        shares.append((energies / (float(energies.sum()) or 1.0)).tolist())
    ratios = diagnosis.recommendation.as_table()
    figure = Figure(figsize=(8, 1.5 + 0.28 * len(named)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(100 * np.array(shares), aspect="auto", cmap="viridis", vmin=0)
    axes.set_title("Disagreement by layer and frequency band; recommended ratio r")
    axes.set_xlabel("frequency band, low to high")
    axes.set_xticks(range(BANDS), list(map(str, range(1, BANDS + 1))))
    labels = [_with_ratio(name, ratios.get(name)) for name in named]
    axes.set_yticks(range(len(named)), labels, fontsize="small")
    figure.colorbar(image, label="share of the layer's disagreement, %")
    save(figure, path)


def _with_ratio(name: str, ratio: float | None) -> str:
    if ratio is None:
        return name
    return f"{name}  r={ratio:g}" if ratio else f"{name}  leave"


def _curve(snapshots: Sequence[Snapshot]) -> tuple[list[float], list[float], list[float]]:
    """Ratio, share of disagreement left, and rho, in the filtered layers, means over rounds."""
    left, rho = [], []
    for ratio in RATIOS:
        kept, cost = 0.0, 0.0
        for snapshot in snapshots:
            low = sum(layer.low(layer.cutoff_of(ratio)) for layer in snapshot.filtered)
            signal = sum(layer.low_signal(layer.cutoff_of(ratio)) for layer in snapshot.filtered)
            kept += 1 - low / (snapshot.filtered_disagreement or 1.0)
            cost += signal / (snapshot.signal or 1.0)
        left.append(100 * kept / len(snapshots))
        rho.append(100 * cost / len(snapshots))
    return list(map(float, RATIOS)), left, rho


def after_filter(path: Path, diagnosis: Diagnosis) -> None:
    """Disagreement and mean gradient left: by ratio, and for every filter that was tried."""
    tried, kept = diagnosis.left("disagreement"), diagnosis.left("mean_gradient")
    figure = Figure(figsize=(11 if tried else 8, 4.4), layout="constrained")
    panels = figure.subplots(1, 2 if tried else 1, squeeze=False)[0]
    ratios, left, rho = _curve(diagnosis.snapshots)
    panels[0].plot(ratios, left, label="disagreement left")
    panels[0].plot(ratios, rho, label="mean gradient removed (rho)", ls="--")
    panels[0].set(xlabel="ratio of the FFT filter", ylabel="energy in the filtered layers, %")
    panels[0].set(ylim=(0, 105), title="The spectral filter by its ratio")
    panels[0].legend(fontsize="small")
    panels[0].grid(alpha=0.3)
    if tried:
        rows = np.arange(len(tried))
        shares = {"disagreement left": (-0.2, tried), "mean gradient left": (0.2, kept)}
        for label, (offset, left_of) in shares.items():
            values = [100 * left_of.get(name, np.nan) for name in tried]
            panels[1].barh(rows + offset, values, 0.4, label=label)
        panels[1].set_yticks(rows, list(tried))
        panels[1].legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
        panels[1].axvline(100, color="black", lw=0.8, ls="--")
        panels[1].invert_yaxis()
        panels[1].set(xlabel="energy left in the filtered layers, %")
        panels[1].set_title("Filters at the same ratio")
        panels[1].grid(axis="x", alpha=0.3)
    save(figure, path)


def similarity(path: Path, checkpoint: Checkpoint) -> None:
    """CKA between local models, one matrix for each stage."""
    stages = checkpoint.similarity
    figure = Figure(figsize=(2.6 * len(stages) + 0.8, 3.6), layout="constrained")
    panels = figure.subplots(1, len(stages), squeeze=False)[0]
    for axes, (stage, matrix) in zip(panels, stages.items(), strict=True):
        values = np.array([[np.nan if v is None else v for v in row] for row in matrix])
        image = axes.imshow(values, vmin=0, vmax=1, cmap="magma")
        off = values[~np.eye(len(values), dtype=bool)]
        axes.set_title(f"{stage}\nmean {off.mean():.2f}", fontsize="small")
        axes.set(xlabel="local model", xticks=[], yticks=[])
    figure.suptitle(f"CKA between local models, round {checkpoint.round}")
    figure.colorbar(image, ax=panels, label="CKA")
    save(figure, path)
