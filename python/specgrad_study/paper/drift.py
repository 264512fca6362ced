"""Where in the spectrum clients disagree, and how alike their models stay.

Both are measured along a run that is played again up to the last of the preset's rounds; what was
found is stored beside the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specgrad_fl.runs import run_name

from specgrad_kernels import diagnostics
from specgrad_study.diagnosis import replay
from specgrad_study.diagnosis.collect import Changes, Checkpoint
from specgrad_study.diagnosis.report import mean_similarity
from specgrad_study.paper import figures
from specgrad_study.paper.ablations import INNERMOST, OUTERMOST
from specgrad_study.paper.claims import Claim, above
from specgrad_study.paper.model import Cell, Context, Experiment, Measured, Results
from specgrad_study.paper.presets import Preset

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
    """Diagnose every cell at the preset's rounds; those that are stored are not measured again."""
    for cell in cells:
        if cell.config is None:
            continue
        known = {checkpoint.round for checkpoint in found(cell, context.folder)}
        if known >= set(context.preset.diagnosed):
            continue
        out = _place(cell, context.folder)
        out.mkdir(parents=True, exist_ok=True)
        config = cell.config.replace(data_root=context.data_root)
        if context.workers:
            config = config.replace(workers=context.workers)
        replay.along(config, context.preset.diagnosed, out, REQUEST, say=context.say)


def found(cell: Cell, folder: Path) -> list[Checkpoint]:
    """What was measured so far, round by round."""
    if cell.config is None:
        return []
    return replay.stored(cell.config, _place(cell, folder), REQUEST)


def _absent(cells: Sequence[Cell], folder: Path) -> dict[str, tuple[str, ...]]:
    """For each cell the rounds at which others were measured and it was not."""
    rounds = {cell.row: {each.round for each in found(cell, folder)} for cell in cells}
    whole = sorted(set().union(*rounds.values()))
    reasons: dict[str, tuple[str, ...]] = {}
    for row, known in rounds.items():
        left = [str(number) for number in whole if number not in known]
        reasons[row] = (f"not diagnosed at rounds {', '.join(left)}",) if left else ()
    return reasons if whole else dict.fromkeys(rounds, ("not diagnosed",))


def _bias_cells(preset: Preset) -> list[Cell]:
    return [
        Cell(f"alpha {alpha:g}", "CIFAR-10", preset.config(alpha=alpha), (0,))
        for alpha in preset.diagnosed_alphas
    ]


def _mean_bands(checkpoints: Sequence[Checkpoint]) -> list[float]:
    return diagnostics.mean_bands([each.snapshot for each in checkpoints]).tolist()


PER_ROUND = "by round"
EVEN = "an even spread over ten bands"


def bias_reading(cells: Sequence[Cell], folder: Path, measure: str) -> Results:
    """The paper's quantities, shares round by round, and what filters leave."""
    results: Results = {}
    absent = _absent(cells, folder)
    known = {cell.row: found(cell, folder) for cell in cells}
    for row, checkpoints in known.items():
        bands = _mean_bands(checkpoints) if checkpoints else []
        for label, count in (("first band", 1), ("first two bands", 2)):
            share = {0: 100 * sum(bands[:count]) / sum(bands)} if checkpoints else {}
            results[f"{label}, % of disagreement", row] = Measured(share, absent[row])
    results |= _growth(known.get("alpha 0.1", []), known.get("alpha 100", []))
    rounds = sorted({each.round for checkpoints in known.values() for each in checkpoints})
    results[EVEN, PER_ROUND] = Measured(dict.fromkeys(rounds, 10.0))
    for row, checkpoints in known.items():
        results |= _by_round(row, checkpoints, absent[row])
    return results


def _growth(skewed: Sequence[Checkpoint], alike: Sequence[Checkpoint]) -> Results:
    """How the energy of bands grows with heterogeneity, over the rounds that both have."""
    shared = {each.round for each in skewed} & {each.round for each in alike}
    if not shared:
        return {}
    high = _mean_bands([each for each in skewed if each.round in shared])
    low = _mean_bands([each for each in alike if each.round in shared])
    values = {
        "energy of all bands": sum(high) / sum(low),
        "energy of the first band": high[0] / low[0],
        "energy of the last five bands": sum(high[5:]) / sum(low[5:]),
        "first band, % of the increase": 100 * (high[0] - low[0]) / (sum(high) - sum(low)),
    }
    return {(label, "0.1 / 100"): Measured({0: value}) for label, value in values.items()}


def _by_round(row: str, checkpoints: Sequence[Checkpoint], absent: tuple[str, ...]) -> Results:
    """Shares in percent of the disagreement, one value for each diagnosed round."""
    bands = {each.round: each.snapshot.bands() for each in checkpoints}
    shares = {number: 100 * float(band[0] / band.sum()) for number, band in bands.items()}
    results = {(f"{row}: first band", PER_ROUND): Measured(shares, absent)}
    for label in TRIED if checkpoints else ():
        left = {each.round: each.snapshot.left(label) for each in checkpoints}
        values = {number: 100 * share for number, share in left.items() if share is not None}
        results[f"{row}: left by {label}", PER_ROUND] = Measured(values)
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
        {cell.row: _mean_bands(known) for cell in cells if (known := found(cell, runs))},
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
    absent = _absent(cells, folder)
    stages: dict[str, None] = {}
    values: dict[str, dict[int, dict[str, float | None]]] = {}
    for cell in cells:
        values[cell.row] = {each.round: mean_similarity(each) for each in found(cell, folder)}
        for similar in values[cell.row].values():
            stages |= dict.fromkeys(similar)
    for row, rounds in values.items():
        for stage in stages or ("penultimate",):
            known = {n: v for n, similar in rounds.items() if (v := similar.get(stage)) is not None}
            results[row, stage] = Measured(known, absent[row])
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
