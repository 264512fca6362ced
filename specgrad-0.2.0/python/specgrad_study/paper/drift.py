"""Where in the spectrum clients disagree, and how alike their models stay.

Both are measured along a run that is played again up to the last of the preset's rounds; what was
found is stored beside the runs. A value is the mean over the rounds of one run, one for each seed.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specgrad_fl import storage
from specgrad_fl.config import Config
from specgrad_fl.runs import run_name

from specgrad_study import diagnosis
from specgrad_study.diagnosis import pictures, replay
from specgrad_study.diagnosis.collect import BATCH, FULL, UPDATE, Checkpoint, Request
from specgrad_study.diagnosis.report import mean_similarity
from specgrad_study.diagnosis.sharpness import UNFILTERED
from specgrad_study.diagnosis.similarity import PENULTIMATE
from specgrad_study.paper import figures
from specgrad_study.paper.ablations import INNERMOST, OUTERMOST, order_settings
from specgrad_study.paper.archive import Archive, Measured, Missing, Results, Source
from specgrad_study.paper.claims import Claim, above, each_above, more_than, one_claim
from specgrad_study.paper.experiment import Cell, Context, Experiment, Part, Rows, grid, on
from specgrad_study.paper.published import paper_numbers

NONE, FFT, CENTRALIZE = "none", "fft 0.05", "centralize"
BEYOND = "fft, channel means kept"
# filters whose effect on clients' gradients is measured: what the experiment on the mechanism
# trains with
MECHANISM: Rows = {
    NONE: {},
    "fft 0.002": {"filter": "fft", "ratio": 0.002},
    "fft 0.005": {"filter": "fft", "ratio": 0.005},
    "fft 0.01": {"filter": "fft", "ratio": 0.01},
    FFT: {"filter": "fft", "ratio": 0.05},
    CENTRALIZE: {"filter": "centralize"},
    "mean of each kernel": {"filter": "centralize", "filter_options": {"group_dims": 2}},
    "mean of the layer": {"filter": "centralize", "filter_options": {"group_dims": 0}},
    "mean of each input channel": {"filter": "centralize", "filter_order": "1023"},
    "centralize then fft": {"filter": "centralize+fft"},
    BEYOND: {"filter": "fft-centralize"},
}
# what the figure on the spectral bias tries besides
TRIED: Rows = {
    **{f"fft, order {order}": order_settings(order) for order in OUTERMOST + INNERMOST},
    "fft, random order": order_settings("random:0"),
    "high-frequency": {"filter": "fft_high"},
    "random": {"filter": "random"},
    "lap": {"filter": "lap"},
    "gaussian": {"filter": "gaussian"},
    "2D FFT": {"filter": "fft2d"},
}
FILTERS = {label: each for label, each in MECHANISM.items() if label != NONE}
CONTENDERS = {**TRIED, **FILTERS}

REQUEST = Request(noise_batches=0, local=True, batch=True, contenders=CONTENDERS)
SHARP = (UNFILTERED, *FILTERS)
# sources of a client's gradient, as columns of the table
COLUMNS = {FULL: "full pass", BATCH: "one batch", UPDATE: "local update"}
# the definition that the theory uses; the others stand beside it
JUDGED = (COLUMNS[FULL],)
SKEWED, ALIKE = "alpha 0.1", "alpha 100"
# checkpoints by seed
Found = dict[int, list[Checkpoint]]


def _request(config: Config) -> Request:
    """Sharpness takes as long as the rest: it is asked for where the mechanism is sought."""
    sought = config.filter == "none" and f"alpha {config.alpha:g}" == SKEWED
    return replace(REQUEST, sharpness=SHARP) if sought else REQUEST


@dataclass(frozen=True)
class Kept:
    """Measured rounds in a subfolder of the runs, and the request they were measured by."""

    folder: str
    request: Callable[[Config], Request]

    def place(self, config: Config, runs: Path) -> Path:
        return runs / self.folder / run_name(config)


DIAGNOSED = Kept("diagnosis", _request)
# features alone: seconds beside the training that is played again
COMPARED = Kept("similarity", lambda config: Request(noise_batches=0, local=True))


def measure(cells: Sequence[Cell], context: Context, kept: Kept = DIAGNOSED) -> None:
    """Diagnose every cell at the preset's rounds; those that are stored are not measured again."""
    for cell in cells:
        for config in cell.configs():
            out, request = kept.place(config, context.folder), kept.request(config)
            known = {checkpoint.round for checkpoint in replay.stored(config, out, request)}
            if known >= set(context.preset.diagnosed):
                continue
            out.mkdir(parents=True, exist_ok=True)
            changes = {"data_root": context.data_root, "workers": context.workers or config.workers}
            played = config.replace(**changes)
            replay.along(played, context.preset.diagnosed, out, request, say=context.say)


def found(cell: Cell, archive: Archive, kept: Kept = DIAGNOSED) -> Found:
    """The rounds measured so far, by seed."""
    held = {
        config.seed: replay.stored(config, kept.place(config, archive.folder), kept.request(config))
        for config in cell.configs()
    }
    return {seed: checkpoints for seed, checkpoints in held.items() if checkpoints}


def rounds_of(*known: Found) -> set[int]:
    """All rounds that were diagnosed."""
    return {each.round for found in known for held in found.values() for each in held}


def absent(cell: Cell, known: Found, rounds: set[int]) -> tuple[Missing, ...]:
    """The seeds that were asked for and not diagnosed, or not at all of ``rounds``."""
    reasons = {}
    for seed in cell.seeds:
        left = sorted(rounds - {each.round for each in known.get(seed, ())})
        if seed not in known:
            reasons[seed] = "not diagnosed"
        elif left:
            reasons[seed] = f"not diagnosed at rounds {', '.join(map(str, left))}"
    return cell.lacking(reasons)


def measured(
    cell: Cell,
    known: Found,
    value: Callable[..., float | None],
    *of: str | int,
    rounds: set[int] | None = None,
) -> Measured:
    """A value for each seed that was diagnosed at all ``rounds``: ``value(checkpoints, *of)``."""
    rounds = rounds or rounds_of(known)
    whole = {seed: each for seed, each in known.items() if rounds_of({seed: each}) >= rounds}
    values = {seed: v for seed, each in whole.items() if (v := value(each, *of)) is not None}
    sources = {seed: Source.of(known[seed][0].origin) for seed in values}
    return Measured(values, absent(cell, known, rounds), sources)


def bands_of(checkpoints: Sequence[Checkpoint], source: str) -> list[float]:
    """Energy of each band, the mean over layers and rounds; empty where it was not measured."""
    held = [snapshot for each in checkpoints if (snapshot := each.by(source))]
    return diagnosis.mean_bands(held).tolist() if held else []


def left(checkpoints: Sequence[Checkpoint], source: str, label: str, what: str) -> float | None:
    """Percent of disagreement or mean gradient that a filter leaves, the mean over rounds."""
    effects = [each.effects.get(source, {}).get(label) for each in checkpoints]
    shares = [getattr(effect, what.replace(" ", "_")) for effect in effects if effect]
    known = [share for share in shares if share is not None]
    return 100 * statistics.fmean(known) if known else None


def bias_reading(cells: Sequence[Cell], archive: Archive, measure: str) -> Results:
    """The paper's quantities, and what filters leave, for each source of the gradient."""
    results: Results = {}
    known = {cell.row: found(cell, archive) for cell in cells}
    of = functools.partial(measured, rounds=rounds_of(*known.values()))
    skewed = next(cell for cell in cells if cell.row == SKEWED)
    for source, column in COLUMNS.items():
        for cell in cells:
            for label, count in (("first band", 1), ("first two bands", 2)):
                share = of(cell, known[cell.row], _first_bands, source, count)
                results[f"{cell.row}: {label}, %", column] = share
        results |= _growth(skewed, known, source, column)
        for label, what in itertools.product(TRIED, ("disagreement", "mean gradient")):
            share = of(skewed, known[SKEWED], left, source, label, what)
            results[f"{SKEWED}: {what} left by {label}, %", column] = share
    return results


def _first_bands(checkpoints: Sequence[Checkpoint], source: str, count: int) -> float | None:
    """Percent of the energy that lies in the first bands."""
    bands = bands_of(checkpoints, source)
    return 100 * sum(bands[:count]) / sum(bands) if bands else None


GROWTH: Mapping[str, Callable[[list[float], list[float]], float]] = {
    "energy of all bands, 0.1 / 100": lambda high, low: sum(high) / sum(low),
    "energy of the first band, 0.1 / 100": lambda high, low: high[0] / low[0],
    "energy of the last five bands, 0.1 / 100": lambda high, low: sum(high[5:]) / sum(low[5:]),
    "first band, % of the increase": lambda high, low: (
        100 * (high[0] - low[0]) / (sum(high) - sum(low))
    ),
}


def _growth(cell: Cell, known: Mapping[str, Found], source: str, column: str) -> Results:
    """Growth of the bands' energy with heterogeneity, seed by seed, over shared rounds."""
    skewed, alike = known[SKEWED], known.get(ALIKE, {})
    values: dict[str, dict[int, float]] = {label: {} for label in GROWTH}
    for seed in sorted(set(skewed) & set(alike)):
        rounds = {e.round for e in skewed[seed]} & {e.round for e in alike[seed]}
        high, low = (
            bands_of([each for each in held[seed] if each.round in rounds], source)
            for held in (skewed, alike)
        )
        for label, of in GROWTH.items() if high and low else ():
            values[label][seed] = of(high, low)
    return {
        (label, column): Measured(
            each,
            absent(cell, {s: skewed[s] for s in each}, set()),
            {seed: Source.of(skewed[seed][0].origin) for seed in each},
        )
        for label, each in values.items()
    }


def _draw_bands(part: Part, archive: Archive, out: Path) -> figures.Drawn:
    """Energy and shares of the bands for the first diagnosed seed, by every source.

    The picture of an earlier report outlives the rounds that it was drawn from, as its numbers do.
    """
    energies = {
        f"{cell.row}, {column}": energy
        for cell in part.cells
        for source, column in COLUMNS.items()
        for held in [found(cell, archive)]
        if held and (energy := bands_of(next(iter(held.values())), source))
    }
    path = out / f"{part.experiment.name}.png"
    caption = (
        f"{part.heading}: disagreement of the active clients' gradients by frequency band, the "
        "mean over layers and rounds of one seed. Above: energy, in squared units of the gradient; "
        "below: percent of all bands."
    )
    if energies:
        pictures.bands(path, energies)
        return [(path, caption)]
    for drawn in (earlier.path.with_name(path.name) for earlier in archive.earlier):
        if drawn.is_file():
            storage.write_bytes(path, drawn.read_bytes())
            return [(path, caption)]
    return []


def distances(results: Results) -> tuple[dict[str, float], int]:
    """Mean factor between the numbers of each gradient source and the paper's.

    Compared are the numbers that all measured sources have; how many these are.
    """
    held: dict[str, dict[str, float]] = {}
    for (row, column), number in paper_numbers("spectral-bias").items():
        found = results.get((row, column))
        mean = statistics.fmean(found.values.values()) if found and found.values else 0.0
        if mean > 0:
            held.setdefault(column, {})[row] = abs(math.log(mean / number.mean))
    shared = set.intersection(*map(set, held.values())) if held else set()
    far = {
        column: math.exp(statistics.fmean(factors[row] for row in shared))
        for column, factors in held.items()
        if shared
    }
    return far, len(shared)


def nearest(results: Results, archive: Archive) -> str:
    """Which source of the gradient comes nearest to the paper's numbers."""
    far, numbers = distances(results)
    if len(far) < 2:
        return ""
    best = min(far, key=lambda column: far[column])
    told = ", ".join(f"{column} {factor:.2f}" for column, factor in far.items())
    return (
        f"The paper does not say from which gradients its figure is made. Nearest to its numbers "
        f"comes the source *{best}*; mean factor between ours and theirs, over the {numbers} "
        f"of its numbers that every source has: {told}."
    )


def _left_by(*labels: str) -> list[str]:
    return [f"{SKEWED}: disagreement left by {label}, %" for label in labels]


SPECTRAL_BIAS = Experiment(
    name="spectral-bias",
    title="Spectral bias of drift",
    reference="Figure 1, and Figure 2 of the supplement",
    table=lambda preset: grid(
        preset,
        on("CIFAR-10"),
        {f"alpha {alpha:g}": {"alpha": alpha} for alpha in preset.diagnosed_alphas},
    ),
    claims=(
        Claim(
            "disagreement is disproportionately concentrated in the lowest of ten bands",
            "Section III-B and Figure 1",
            tuple(more_than(f"{alpha}: first band, %", 10) for alpha in (SKEWED, ALIKE)),
            columns=JUDGED,
        ),
        Claim(
            "the lowest band's share is larger under stronger heterogeneity",
            "Section III-B and Figure 1",
            (above(f"{SKEWED}: first band, %", f"{ALIKE}: first band, %"),),
            columns=JUDGED,
        ),
        Claim(
            "the additional disagreement lies primarily in the lowest band",
            "Section III-B and Figure 1",
            (more_than("first band, % of the increase", 50),),
            columns=JUDGED,
            margin="more than half for primarily: ours; the paper has 79.7 %",
        ),
        Claim(
            "at the same ratio the filter leaves less disagreement than high, random or shuffled "
            "bins",
            contrasts=each_above(
                _left_by("high-frequency", "random", "fft, random order", "fft, order 3210"),
                _left_by("fft, order 0123"),
            ),
            columns=JUDGED,
        ),
    ),
    draws=(_draw_bands,),
    reading=bias_reading,
    measure=measure,
    trained=lambda cell: False,
    baseline=lambda row: None,
    unit="percent",
    remark=nearest,
    note=(
        "Disagreement of the active clients' gradients in ten bands of the spectrum, the mean "
        "over layers and rounds, by three sources of a client's gradient: a full pass over its "
        "samples, one mini-batch, and the local update divided by its learning rates. Below: the "
        "shares of disagreement and of mean gradient that filters leave in their layers; a "
        "filter aims well where it leaves less of the first than of the second. Claims are judged "
        "by the full pass."
    ),
)

STAGES = ("layer1", "layer2", "layer3", PENULTIMATE)
CKA_ROWS: Rows = {"FedAvg": {}, "FedAvg + FFT": {"filter": "fft"}}


def _similarity(checkpoints: Sequence[Checkpoint], stage: str) -> float | None:
    """Mean CKA in percent; ``None`` for a stage that is the penultimate layer by another name."""
    each = [mean_similarity(checkpoint) for checkpoint in checkpoints]
    known = [v for similar in each if (v := similar.get(stage)) is not None]
    last = [similar.get(PENULTIMATE) for similar in each]
    if not known or (stage != PENULTIMATE and known == last):
        return None
    return 100 * statistics.fmean(known)


def cka_reading(cells: Sequence[Cell], archive: Archive, measure: str) -> Results:
    """Mean similarity between local models, by stage."""
    results: Results = {}
    known = {cell.row: found(cell, archive, COMPARED) for cell in cells}
    rounds = rounds_of(*known.values())
    for stage in STAGES:
        for cell in cells:
            value = measured(cell, known[cell.row], _similarity, stage, rounds=rounds)
            if value.values or stage != "layer3":
                results[f"{stage}: {cell.row}", cell.column] = value
    return results


CKA = Experiment(
    name="cka",
    title="Similarity of local models (CKA)",
    reference="Figure 6",
    table=lambda preset: grid(preset, on("CIFAR-10"), CKA_ROWS),
    claims=one_claim(
        "the filter maintains a higher similarity across all layers",
        "Section V-C and Figure 6",
        tuple(
            above(f"{stage}: FedAvg + FFT", f"{stage}: FedAvg")
            for stage in STAGES
            if stage != "layer3"
        ),
    ),
    reading=cka_reading,
    measure=functools.partial(measure, kept=COMPARED),
    trained=lambda cell: False,
    unit="percent CKA",
    note=(
        "Debiased linear CKA in percent between the local models of a round before they are "
        "averaged, on 2,000 test images drawn by the run's seed, the mean over pairs and rounds. "
        "The penultimate layer of a ResNet is its third stage after pooling, so that stage is not "
        "shown again."
    ),
)
