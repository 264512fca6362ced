"""The tables and curves that compare federated methods."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from specgrad_study.paper import figures
from specgrad_study.paper.claims import above, each_above, one_claim
from specgrad_study.paper.experiment import Cell, Experiment, Rows, grid, on
from specgrad_study.paper.presets import SETTINGS_GRID, Preset

METHODS: Rows = {
    "FedAvg": {},
    "FedProx": {"method": "fedprox"},
    # its dynamic regulariser never decays, so the learning rate hardly may
    "FedDyn": {"method": "feddyn", "lr_decay": 0.9995},
    "SCAFFOLD": {"method": "scaffold"},
    "FedCM": {"method": "fedcm"},
    "FedSAM": {"method": "fedsam"},
    "FedDisco": {"method": "feddisco"},
    "FedAWA": {"method": "fedawa"},
    "FedLWS": {"method": "fedlws"},
}
FFT = {"filter": "fft"}
OURS = "FedAvg + FFT"
IMAGES = ("CIFAR-10", "CIFAR-100", "Tiny-ImageNet")


def with_filter(names: Iterable[str]) -> Rows:
    """Every method, followed by itself with the filter."""
    return {
        f"{name}{ending}": {**METHODS[name], **changes}
        for name in names
        for ending, changes in (("", {}), (" + FFT", FFT))
    }


def without_filter(row: str) -> str | None:
    """A method with the filter is compared with itself."""
    return row.removesuffix(" + FFT") if row.endswith(" + FFT") else None


def _heterogeneous(preset: Preset, more: tuple[str, ...] = ()) -> list[Cell]:
    """Nine methods and FedAvg with the filter; ``more``: columns in which every method has it."""
    cells = []
    for dataset, alpha in itertools.product(IMAGES, (0.6, 0.1)):
        column = f"{dataset}, alpha {alpha:g}"
        rows = with_filter(METHODS) if column in more else {**METHODS, OURS: FFT}
        cells += grid(preset, {column: {"dataset": dataset, "alpha": alpha}}, rows)
    return cells


TABLE1 = Experiment(
    name="table1",
    title="Main results",
    reference="Table I",
    table=lambda preset: _heterogeneous(preset, preset.all_filtered),
    claims=one_claim(
        "FedAvg with the filter achieves the best performance of all methods",
        "Section V-B and Table I",
        each_above([OURS], METHODS),
    ),
)

NEAR_IID = Experiment(
    name="near-iid",
    title="Near-IID federations",
    reference="Table VII",
    table=lambda preset: grid(preset, on(*IMAGES, alpha=100.0), {**METHODS, OURS: FFT}),
    claims=one_claim(
        "FedAvg with the filter outperforms strong baselines under near-IID settings",
        "Section V-C and Table VII",
        each_above([OURS], METHODS),
    ),
)

CURVES = Experiment(
    name="curves",
    title="Learning curves",
    reference="Figure 4 and Figure 5",
    table=_heterogeneous,
    draws=(figures.curves,),
    note="The accuracies are those of Table I, where the claim about them is judged.",
)

BACKBONES = {
    f"{dataset}, {backbone}": {"dataset": dataset, "backbone": backbone}
    for dataset in IMAGES[:2]
    for backbone in ("ResNet-20", "ResNet-18", "WRN-56-2", "DenseNet-121", "ViT")
}
COMBINED = ("FedAvg", "FedProx", "SCAFFOLD", "FedAWA")

TABLE2 = Experiment(
    name="table2",
    title="Backbones and methods",
    reference="Table II",
    table=lambda preset: grid(preset, BACKBONES, with_filter(COMBINED)),
    claims=one_claim(
        "the filter improves every method it is integrated with",
        "Section V-B and Table II",
        tuple(above(f"{name} + FFT", name) for name in COMBINED),
    ),
    draws=(figures.curves,),
    baseline=without_filter,
)

SHIFTED: Rows = {name: METHODS[name] for name in ("FedAvg", "FedDyn", "FedCM", "SCAFFOLD")}

FEATURE_SHIFT = Experiment(
    name="feature-shift",
    title="Feature shift",
    reference="Table IX",
    table=lambda preset: grid(preset, on("CIFAR-10-C", "CIFAR-100-C"), {**SHIFTED, OURS: FFT}),
    claims=one_claim(
        "FedAvg with the filter achieves the best performance under severe feature shift",
        "Section V-D and Table IX",
        each_above([OURS], SHIFTED),
    ),
)

BY_WRITER = ("FedAvg", "SCAFFOLD", "FedAWA")


def _femnist(preset: Preset) -> list[Cell]:
    where = {"dataset": "FEMNIST", "backbone": "CNN"}
    columns = {
        f"active ratio {ratio:g}": {**where, "active": max(1, round(ratio * preset.writers))}
        for ratio in (0.05, 0.1)
    }
    return grid(preset, columns, with_filter(BY_WRITER))


FEMNIST = Experiment(
    name="femnist",
    title="A natural partition (FEMNIST)",
    reference="Table X",
    table=_femnist,
    claims=one_claim(
        "the filter improves performance over all baselines",
        "Section V-D and Table X",
        tuple(above(f"{name} + FFT", name) for name in BY_WRITER),
    ),
    baseline=without_filter,
)

SUPPLEMENT = Experiment(
    name="supplement",
    title="Medical images and text",
    reference="Section VII of the supplement",
    table=lambda preset: grid(
        preset, on("BloodMNIST", "Yahoo! Answers"), {"FedAvg": {}, OURS: FFT}
    ),
    claims=one_claim(
        "experiments on NLP and medical imaging show that the filter generalises",
        "Section V-D, which refers to the supplement",
        (above(OURS, "FedAvg"),),
    ),
    note="The supplement is not public: neither its models nor its numbers are known.",
)


def _settings(preset: Preset) -> list[Cell]:
    clients, active = preset.base.clients, preset.base.active
    methods = {"FedAvg": {}, OURS: FFT} | {name: METHODS[name] for name in ("SCAFFOLD", "FedDyn")}
    rows = {}
    for name, values in preset.settings_grid.items():
        for value in values:
            if name == "clients":
                changes = {"clients": int(value), "active": max(1, round(active / clients * value))}
            elif name == "epochs":
                changes = {"epochs": int(value)}
            else:
                changes = {"active": max(1, round(value * clients))}
            for row, method in methods.items():
                rows[f"{name} {value:g}: {row}"] = {**method, **changes}
    return grid(preset, on("CIFAR-10"), rows)


SETTINGS = Experiment(
    name="settings",
    title="Clients, local epochs, participation",
    reference="Figure 3",
    table=_settings,
    claims=one_claim(
        "the filter keeps its advantage over FedAvg across clients, local epochs, participation",
        "Section V-D and Figure 3",
        tuple(
            above(f"{name} {value:g}: {OURS}", f"{name} {value:g}: FedAvg")
            for name, values in SETTINGS_GRID.items()
            for value in values
        ),
    ),
)
