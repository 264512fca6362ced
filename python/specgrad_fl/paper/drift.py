"""Where in the spectrum clients disagree, and how alike their models stay.

Both are measured along a run that is played again up to the last of the preset's rounds; what was
found is stored beside the runs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specgrad_fl import atomic
from specgrad_fl.diagnosis import replay
from specgrad_fl.diagnosis.collect import Changes, Checkpoint
from specgrad_fl.diagnosis.report import mean_similarity
from specgrad_fl.paper import figures
from specgrad_fl.paper.ablations import INNERMOST, OUTERMOST
from specgrad_fl.paper.claims import Claim, above
from specgrad_fl.paper.model import Cell, Context, Experiment, Measured, Results
from specgrad_fl.paper.presets import Preset
from specgrad_fl.runs import run_name

Found = dict[str, Any]

TRIED: dict[str, Changes] = {
    "fft, order 0123": {"method": "fft"},
    **{f"fft, order {order}": {"order": order} for order in OUTERMOST[1:] + INNERMOST},
    "fft, random order": {"order": "random:0"},
    "high-frequency": {"method": "fft_high"},
    "random": {"method": "random"},
    "lap": {"method": "lap"},
    "gaussian": {"method": "gaussian"},
    "2D FFT": {"method": "fft2d"},
}
REQUEST = replay.Request(after=TRIED, noise_batches=0, local=True)


def _place(cell: Cell, folder: Path) -> Path:
    assert cell.config is not None
    return folder / "diagnosis" / run_name(cell.config)


def measure(cells: Sequence[Cell], context: Context) -> None:
    """Diagnose every cell that has not been diagnosed at these rounds."""
    for cell in cells:
        if cell.config is None or read(cell, context.folder) is not None:
            continue
        out = _place(cell, context.folder)
        out.mkdir(parents=True, exist_ok=True)
        config = cell.config.replace(data_root=context.data_root)
        if context.workers:
            config = config.replace(workers=context.workers)
        rounds = context.preset.diagnosed
        found = replay.along(config, rounds, out, REQUEST, say=context.say)
        atomic.write_text(out / "found.json", json.dumps(_as_data(found)) + "\n")


def _as_data(found: Sequence[Checkpoint]) -> list[Found]:
    return [
        {
            "round": each.round,
            "bands": each.snapshot.bands().tolist(),
            "left": {label: each.snapshot.left(label) for label in TRIED},
            "parseval_error": each.snapshot.parseval_error,
            "cosine": each.cosine,
            "similarity": mean_similarity(each),
        }
        for each in found
    ]


def read(cell: Cell, folder: Path) -> list[Found] | None:
    """What was found, round by round."""
    path = _place(cell, folder) / "found.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _bias_cells(preset: Preset) -> list[Cell]:
    return [
        Cell(f"alpha {alpha:g}", "CIFAR-10", preset.config(alpha=alpha), (0,))
        for alpha in preset.diagnosed_alphas
    ]


def _mean_bands(found: Sequence[Found]) -> list[float]:
    return [statistics.fmean(band) for band in zip(*(f["bands"] for f in found), strict=True)]


PER_ROUND = "by round"
EVEN = "an even spread over ten bands"


def bias_reading(cells: Sequence[Cell], folder: Path, measure: str) -> Results:
    """The paper's quantities, shares round by round, and what filters leave."""
    results: Results = {}
    energies: dict[str, list[float]] = {}
    missing = Measured(missing=("not diagnosed",))
    for cell in cells:
        found = read(cell, folder)
        alpha = cell.row
        energies[alpha] = bands = _mean_bands(found) if found else []
        whole = sum(bands)
        for label, count in (("first band", 1), ("first two bands", 2)):
            share = Measured({0: 100 * sum(bands[:count]) / whole}) if found else missing
            results[f"{label}, % of disagreement", alpha] = share
    high, low = energies.get("alpha 0.1"), energies.get("alpha 100")
    for label, value in _growth(high, low).items() if high and low else ():
        results[label, "0.1 / 100"] = Measured({0: value})
    for cell in cells:
        results |= _by_round(cell, read(cell, folder))
    return results


def _growth(high: list[float], low: list[float]) -> dict[str, float]:
    """How the energy of bands grows with heterogeneity."""
    return {
        "energy of all bands": sum(high) / sum(low),
        "energy of the first band": high[0] / low[0],
        "energy of the last five bands": sum(high[5:]) / sum(low[5:]),
        "first band, % of the increase": 100 * (high[0] - low[0]) / (sum(high) - sum(low)),
    }


def _by_round(cell: Cell, found: Sequence[Found] | None) -> Results:
    """Shares in percent of the disagreement, one value for each diagnosed round."""
    if not found:
        return {(f"{cell.row}: first band", PER_ROUND): Measured(missing=("not diagnosed",))}
    results = {
        (EVEN, PER_ROUND): Measured({f["round"]: 10.0 for f in found}),
        (f"{cell.row}: first band", PER_ROUND): Measured(
            {f["round"]: 100 * f["bands"][0] / sum(f["bands"]) for f in found}
        ),
    }
    for label in TRIED:
        left = {f["round"]: 100 * f["left"][label] for f in found if f["left"][label] is not None}
        results[f"{cell.row}: left by {label}", PER_ROUND] = Measured(left)
    return results


def _leaves_less(better: str, worse: str) -> Claim:
    return Claim(
        f"{better} leaves less disagreement than {worse}",
        (above(f"alpha 0.1: left by {worse}", f"alpha 0.1: left by {better}"),),
    )


SPECTRAL_BIAS = Experiment(
    name="spectral-bias",
    title="Spectral bias of drift",
    reference="Figure 1, and Figure 2 of the supplement",
    cells=_bias_cells,
    claims=(
        Claim(
            "disagreement is concentrated in the lowest band",
            tuple(above(f"{a}: first band", EVEN) for a in ("alpha 0.1", "alpha 100")),
        ),
        Claim(
            "the lowest band's share is larger under stronger heterogeneity",
            (above("alpha 0.1: first band", "alpha 100: first band"),),
        ),
        _leaves_less("fft, order 0123", "high-frequency"),
        _leaves_less("fft, order 0123", "random"),
        _leaves_less("fft, order 0123", "fft, random order"),
        _leaves_less("fft, order 0123", "fft, order 3210"),
        Claim(
            "a 2-D FFT of each kernel cannot capture the divergence between filters: it leaves "
            "more disagreement than order 0123",
            (above("alpha 0.1: left by 2D FFT", "alpha 0.1: left by fft, order 0123"),),
        ),
    ),
    draw=lambda name, cells, results, runs, out: figures.bands(
        out / f"{name}.png",
        {cell.row: _mean_bands(found) for cell in cells if (found := read(cell, runs))},
    ),
    reading=bias_reading,
    measure=measure,
    trained=lambda cell: False,
    accuracy=False,
    counted="rounds",
    note=(
        "Disagreement of the active clients' gradients in ten bands of the spectrum, the mean "
        "over layers and rounds. The column *by round* has one value for each diagnosed round in "
        "place of seeds: the share of the first band, and the share of the disagreement in the "
        "filtered layers that each filter leaves."
    ),
)


def _cka_cells(preset: Preset) -> list[Cell]:
    rows = {"FedAvg": {}, "FedAvg + FFT": {"filter": "fft"}}
    return [Cell(row, "CIFAR-10", preset.config(**changes), (0,)) for row, changes in rows.items()]


def cka_reading(cells: Sequence[Cell], folder: Path, measure: str) -> Results:
    """Mean similarity between local models, one column for each stage."""
    results: Results = {}
    for cell in cells:
        found = read(cell, folder)
        if found is None:
            results[cell.row, "penultimate"] = Measured(missing=("not diagnosed",))
            continue
        for stage in found[0]["similarity"]:
            values = {f["round"]: f["similarity"][stage] for f in found}
            known = {number: value for number, value in values.items() if value is not None}
            results[cell.row, stage] = Measured(known)
    return results


CKA = Experiment(
    name="cka",
    title="Similarity of local models (CKA)",
    reference="Figure 6",
    cells=_cka_cells,
    claims=(Claim("the filter keeps local models more alike", (above("FedAvg + FFT", "FedAvg"),)),),
    draw=lambda name, cells, results, runs, out: figures.stages(out / f"{name}.png", results),
    reading=cka_reading,
    measure=measure,
    trained=lambda cell: False,
    accuracy=False,
    counted="rounds",
    note=(
        "Debiased linear CKA between the local models of a round before they are averaged, the "
        "mean over pairs; one value for each diagnosed round in place of seeds."
    ),
)
