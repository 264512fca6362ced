"""Experiments of ours: tuned rates, full size, why the means, relatives, adaptive filters.

What was expected before any run: docs/predictions.md.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence

from specgrad_study.paper import figures
from specgrad_study.paper.archive import Archive, Finished, Measured, Results
from specgrad_study.paper.claims import Claim, above, close, each_above
from specgrad_study.paper.experiment import Cell, Experiment, Rows, accuracies, against, grid
from specgrad_study.paper.presets import Preset, Settings
from specgrad_study.variants import HEAD

NONE, FFT, CENTRALIZE = "none", "fft 0.05", "centralize"
PLAIN: Rows = {NONE: {}, FFT: {"filter": "fft"}, CENTRALIZE: {"filter": "centralize"}}
MAIN, NO_NORMS = "CIFAR-10, alpha 0.1", "CIFAR-10, alpha 0.1, no norm layers"

_ours = functools.partial(
    Experiment, reference="ours, not the paper's", ours=True, baseline=against(NONE)
)
# tried for each contender; beyond, if the best is at an end
RATES = (0.02, 0.05, 0.1, 0.2, 0.4)
HELD_OUT = "CIFAR-10, alpha 0.1, a tenth held out"


def at(row: str, rate: float) -> str:
    """A contender at a learning rate, as a row."""
    return f"{row}, learning rate {rate:g}"


def best(row: str) -> str:
    """A contender at the learning rate that validation chose, as a row."""
    return f"{row}, its best learning rate"


def _tuned(preset: Preset) -> list[Cell]:
    rows = {at(row, rate): {**each, "lr": rate} for rate in RATES for row, each in PLAIN.items()}
    return grid(preset, {HELD_OUT: {"validation": 0.1}}, rows)


def chosen_rate(runs: Mapping[float, Mapping[int, Finished]]) -> float | None:
    """The rate with the best validation accuracy, the mean over the seeds that all rates have.

    Of a run, the mean over the evaluations of its last ten rounds counts.
    """
    known = {rate: each for rate, each in runs.items() if each}
    seeds = set.intersection(*(set(each) for each in known.values())) if known else set()
    if not seeds:
        return None
    return max(
        known,
        key=lambda rate: statistics.fmean(
            known[rate][seed].summary["validation_mean_last_10"] for seed in seeds
        ),
    )


def _runs(cells: Sequence[Cell], archive: Archive) -> dict[str, dict[float, dict[int, Finished]]]:
    """Finished runs by contender, learning rate and seed."""
    found: dict[str, dict[float, dict[int, Finished]]] = {row: {} for row in PLAIN}
    for cell in cells:
        if cell.config is not None:
            row = cell.row.partition(", learning rate")[0]
            found[row][cell.config.lr] = cell.finished(archive)
    return found


def tuned_reading(cells: Sequence[Cell], archive: Archive, measure: str) -> Results:
    """Test accuracy of the grid, and of each contender at the rate that validation chose."""
    results = accuracies(cells, archive, measure)
    for row, runs in _runs(cells, archive).items():
        rate = chosen_rate(runs)
        held = Measured() if rate is None else results[at(row, rate), HELD_OUT]
        results[best(row), HELD_OUT] = held
    return results


def _told(results: Results, archive: Archive) -> str:
    """The rates that were chosen, found again by their values."""
    told = []
    for row in PLAIN:
        held = results[best(row), HELD_OUT].values
        rates = [rate for rate in RATES if held and results[at(row, rate), HELD_OUT].values == held]
        end = " (at an end of the grid)" if rates and rates[0] in (RATES[0], RATES[-1]) else ""
        told += [f"{row} {rates[0]:g}{end}"] if rates else []
    return f"Chosen: {', '.join(told)}." if told else ""


def _same_rate(row: str) -> str | None:
    """The row without a filter at the same learning rate, or at its own best."""
    name, comma, rate = row.partition(", ")
    return None if name == NONE else f"{NONE}{comma}{rate}"


def _improve(text: str, of: Callable[[str], str] = str) -> tuple[Claim, ...]:
    """Both filters improve FedAvg, where ``text`` says so of ``{}``; ``of`` names the rows."""
    return tuple(
        Claim(text.format(name), contrasts=(above(of(row), of(NONE)),))
        for row, name in ((FFT, "the spectral filter"), (CENTRALIZE, CENTRALIZE))
    )


TUNED = _ours(
    name="tuned",
    title="Each contender at its own learning rate",
    table=_tuned,
    claims=_improve("at its own best learning rate each {} improves FedAvg", best),
    reading=tuned_reading,
    baseline=_same_rate,
    remark=_told,
    note=(
        "Learning rates are chosen on a tenth of each client's samples, held out of training, by "
        "the mean over the evaluations of the last ten rounds and over seeds; reported is test "
        "accuracy. A gain is over no filter at the same rate, and in the last rows over no filter "
        "at its own best rate."
    ),
)


EPOCHS = {"one local epoch": 1, "five local epochs": 5}


def _full_size(preset: Preset) -> list[Cell]:
    columns = {
        f"{MAIN}, {name}": {**preset.full_size, "epochs": epochs} for name, epochs in EPOCHS.items()
    }
    return grid(preset, columns, PLAIN)


FULL_SIZE = _ours(
    name="full-size",
    title="The paper's network at its full size",
    table=_full_size,
    claims=_improve("on ResNet-20 at 32 x 32 {} improves FedAvg after 300 rounds"),
    draws=(figures.curves, figures.gains),
    note=(
        "ResNet-20, images of 32 x 32, 300 rounds, 10 of 100 clients (smoke: its own size). Five "
        "local epochs are the paper's cell: 58.40 % for FedAvg, 78.05 % with the spectral filter."
    ),
)


def _direction(model: str, kind: str, **options: object) -> Settings:
    options = {"direction": kind, **options}
    return {"model": f"specgrad_study.directions:{model}", "model_options": options}


def _method(name: str, kind: str = "centralize", **options: object) -> Settings:
    return {"method": f"specgrad_study.variants:{name}", "filter": kind, "options": options}


CURRENT, FIRST = "mean input of the batch at hand", "mean input of the first batches"
RANDOM, SERVER, BACK = "a random direction", "centralize at the server alone", "means put back"
HALVES = ("steps", "clients", "rounds")


def _why(preset: Preset) -> list[Cell]:
    model = _model(preset)
    rows: Rows = {
        NONE: {},
        CENTRALIZE: PLAIN[CENTRALIZE],
        CURRENT: _direction(model, "current"),
        FIRST: _direction(model, "first"),
        f"{FIRST}, renewed every 10 rounds": _direction(model, "first", every=10),
        RANDOM: _direction(model, "random"),
        **{f"centralize in half of the {of}": _method("Half", of=of) for of in HALVES},
        SERVER: _method("ServerCentralize", "none", model=model),
        BACK: _method("MeansBack", "none", model=model),
        **{f"means damped by {s:g}": _method("Damped", strength=s) for s in (0.25, 0.5, 0.75)},
    }
    plain = {"model": f"specgrad_study.paper.plain:{model}"}
    without: Rows = {
        NONE: plain,
        CENTRALIZE: {**plain, "filter": "centralize"},
        FIRST: _direction(model, "first", norms=False),
    }
    return grid(preset, {MAIN: {}}, rows) + grid(preset, {NO_NORMS: {}}, without)


def _relatives(preset: Preset) -> list[Cell]:
    model = _model(preset)
    rows: Rows = {
        **PLAIN,
        "GC-Fed": _method("ServerCentralize", layers=HEAD, model=model),
        "FedFFT": _method("FedFFT", "fft"),
        "FedSAM": {"method": "fedsam"},
        "SGMS 0.5": _method("Damped", strength=0.5),
        "Laplacian smoothing": _method("Laplacian", "none", model=model),
        "FedMuon": _method("FedMuon", "none", model=model),
    }
    return grid(preset, {MAIN: {}}, rows)


SHARPNESS, WIENER, FALLING = "damped by sharpness", "Wiener gains", "falling ratio"
RULES = (FIRST, SHARPNESS, WIENER, FALLING)


def _adaptive(preset: Preset) -> list[Cell]:
    model = _model(preset)
    own: Settings = {"filter": "none"}
    rules = {
        name: {**own, "method": f"specgrad_study.adaptive:{kind}", "options": {"model": model}}
        for name, kind in ((SHARPNESS, "Sharpness"), (WIENER, "Wiener"), (FALLING, "Falling"))
    }
    rules[FALLING]["options"]["rounds"] = preset.base.rounds
    return grid(preset, {MAIN: {}}, {**PLAIN, FIRST: _direction(model, "first"), **rules})


def _model(preset: Preset) -> str:
    """The ResNet of a preset, whose variants are made."""
    return str(preset.backbones["ResNet-20"].get("model", preset.base.model))


WHY = _ours(
    name="why",
    title="Why the means?",
    table=_why,
    claims=(
        Claim(
            "removing one fixed direction, the mean input of the first batches, improves FedAvg",
            contrasts=(above(FIRST, NONE),),
        ),
        Claim(
            "a fixed direction gains more than that of the batch at hand",
            contrasts=(above(FIRST, CURRENT),),
            columns=(MAIN,),
        ),
        Claim(
            "a fixed random direction gains nothing",
            contrasts=(close(RANDOM, NONE, 1),),
            columns=(MAIN,),
            margin="1 point for nothing",
        ),
        Claim(
            "centralising at the clients gains more than at the server alone or at a round's end",
            contrasts=each_above((CENTRALIZE,), (SERVER, BACK)),
            columns=(MAIN,),
        ),
        Claim(
            "centralising in half of the steps, clients or rounds gains less than always",
            contrasts=each_above((CENTRALIZE,), [f"centralize in half of the {x}" for x in HALVES]),
            columns=(MAIN,),
        ),
    ),
    note=(
        "From each convolution's gradient one direction of the input weights is removed, the same "
        "for all output channels: the mean input patch of the batch at hand, that of the first "
        "batches of round 0 averaged over its clients, or a random one; centralize removes the "
        "direction of all ones. Half: every second step, client or round. Put back: at the end of "
        "a round clients restore the channel means that their weights had."
    ),
)

RELATIVES = _ours(
    name="relatives",
    title="The nearest relatives",
    table=_relatives,
    claims=(
        Claim(
            "GC-Fed and SGMS improve FedAvg",
            contrasts=each_above(("GC-Fed", "SGMS 0.5"), (NONE,)),
        ),
        Claim(
            "Laplacian smoothing, which keeps the means, does not improve FedAvg",
            contrasts=(above(CENTRALIZE, "Laplacian smoothing"),),
        ),
    ),
    note=(
        "GC-Fed: centralize at the clients, and the update of the head centralised at the server. "
        "FedFFT: FedSAM whose perturbation alone is filtered. SGMS: half of the channel mean is "
        "subtracted. Laplacian smoothing: sigma 1 along each flattened layer. FedMuon: orthogonal "
        "steps blended with the server's direction; clients begin with that direction as momentum, "
        "where the original averages their momenta. None of them is tuned."
    ),
)

ADAPTIVE = _ours(
    name="adaptive",
    title="Filters that adapt themselves",
    reference="ours, after the paper's future work",
    table=_adaptive,
    claims=tuple(
        Claim(f"{rule}: {text}", contrasts=(above(rule, other),), columns=(MAIN,))
        for rule in RULES
        for other, text in ((NONE, "improves FedAvg"), (FFT, "beats fft 0.05"))
    ),
    note=(
        "Mean input of the first batches: one direction for each layer, sent down once. Damped by "
        "sharpness: channel means times min(1, 2 / (learning rate x curvature along them)), "
        "measured by each client once a round. Wiener gains: ten for each layer, from the last "
        "round's updates. Falling ratio: fft from 0.1 in a line to 0."
    ),
)
