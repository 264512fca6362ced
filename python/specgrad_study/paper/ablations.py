"""What the filter removes, where, in which order, how much, and from whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specgrad_study.paper import figures
from specgrad_study.paper.claims import Claim, above, close, gains_more
from specgrad_study.paper.model import Cell, Experiment
from specgrad_study.paper.presets import Preset

DATASETS = ("CIFAR-10", "CIFAR-100")


def _ablation(
    preset: Preset,
    name: str,
    rows: Mapping[str, Mapping[str, Any]],
    backbone: str = "ResNet-20",
) -> list[Cell]:
    """Each row's settings on each data set."""
    return [
        Cell(row, dataset, preset.config(dataset, backbone, **changes), preset.seeds_for(name))
        for dataset in DATASETS
        for row, changes in rows.items()
    ]


CONTROLS = {
    "High-frequency suppression": {"filter": "fft_high"},
    "Random suppression": {"filter": "random"},
    "l2-norm rescaling": {"filter": "l2"},
}
LOW_PASS_REMOVED = {
    "Local average pooling detrend": {"filter": "lap"},
    "Gaussian detrend": {"filter": "gaussian"},
    "Low-frequency suppression": {"filter": "fft"},
}
STRATEGIES = Experiment(
    name="strategies",
    title="Filtering strategies",
    reference="Table III",
    cells=lambda preset: _ablation(
        preset, "strategies", {"None (FedAvg)": {}, **CONTROLS, **LOW_PASS_REMOVED}
    ),
    claims=(
        Claim(
            "low-frequency suppression improves FedAvg",
            (above("Low-frequency suppression", "None (FedAvg)"),),
        ),
        Claim(
            "local average pooling detrend improves FedAvg",
            (above("Local average pooling detrend", "None (FedAvg)"),),
        ),
        Claim("Gaussian detrend improves FedAvg", (above("Gaussian detrend", "None (FedAvg)"),)),
        Claim(
            "every low-frequency strategy is better than every control",
            tuple(above(low, control) for low in LOW_PASS_REMOVED for control in CONTROLS),
        ),
        Claim(
            "the controls gain little: each stays within 3 points of FedAvg",
            tuple(close(control, "None (FedAvg)", 3) for control in CONTROLS),
        ),
    ),
    draw=figures.dots_and_curves,
)

# the first stage includes the stem; patterns hold for every bundled ResNet
RESNET_LAYERS: dict[str, dict[str, Any]] = {
    "none (FedAvg)": {},
    "shallow conv": {
        "filter": "fft",
        "filter_select": r"^(conv1|layer1\.\d+\.conv\d)\.weight$",
    },
    "middle conv": {"filter": "fft", "filter_select": r"^layer2\.\d+\.conv\d\.weight$"},
    "deep conv": {"filter": "fft", "filter_select": r"^layer3\.\d+\.conv\d\.weight$"},
    "classifier head": {"filter": "fft", "filter_select": r"^head\.weight$"},
    "all conv": {"filter": "fft"},
    "all conv + head": {
        "filter": "fft",
        "filter_select": r"^(conv1|layer\d\.\d+\.conv\d|head)\.weight$",
    },
}
VIT_LAYERS: dict[str, dict[str, Any]] = {
    "none (FedAvg)": {},
    "patch embedding": {"filter": "fft"},
    "attention": {"filter": "fft", "filter_select": r"\.attention\.\w+\.weight$"},
    "MLP": {"filter": "fft", "filter_select": r"\.mlp\.\d\.weight$"},
    "classifier head": {"filter": "fft", "filter_select": r"^head\.weight$"},
    "all eligible weights": {
        "filter": "fft",
        "filter_select": r"^(patch_embed|blocks\.\d+\.(attention|mlp)\.\w+|head)\.weight$",
    },
}


def _layers(preset: Preset) -> list[Cell]:
    resnet = {f"ResNet-20: {name}": changes for name, changes in RESNET_LAYERS.items()}
    vit = {f"ViT: {name}": changes for name, changes in VIT_LAYERS.items()}
    return _ablation(preset, "layers", resnet) + _ablation(preset, "layers", vit, "ViT")


LAYERS = Experiment(
    name="layers",
    title="Filtered layers",
    reference="Table IV",
    cells=_layers,
    claims=(
        Claim(
            "the gain increases from shallow to deep convolutions",
            (
                above("ResNet-20: middle conv", "ResNet-20: shallow conv"),
                above("ResNet-20: deep conv", "ResNet-20: middle conv"),
            ),
        ),
        Claim(
            "filtering all convolutions is better than filtering any stage alone",
            tuple(
                above("ResNet-20: all conv", f"ResNet-20: {part} conv")
                for part in ("shallow", "middle", "deep")
            ),
        ),
        Claim(
            "filtering the head alone gives no benefit: within 3 points of FedAvg",
            (close("ResNet-20: classifier head", "ResNet-20: none (FedAvg)", 3),),
        ),
        Claim(
            "adding the head to all convolutions changes little: within 3 points",
            (close("ResNet-20: all conv + head", "ResNet-20: all conv", 3),),
        ),
        Claim(
            "ViT: filtering the patch embedding helps",
            (above("ViT: patch embedding", "ViT: none (FedAvg)"),),
        ),
    ),
    draw=figures.dots,
)

OUTERMOST = ("0123", "0231", "0312")
INNERMOST = ("3210", "1230", "2130", "2310")


def order_settings(order: str) -> dict[str, Any]:
    """The tensor's own order is the default, so that its run is shared."""
    return {"filter": "fft", "filter_order": "" if order == "0123" else order}


ORDERS = Experiment(
    name="orders",
    title="Flattening order",
    reference="Table V",
    cells=lambda preset: _ablation(
        preset,
        "orders",
        {
            "FedAvg": {},
            **{order: order_settings(order) for order in OUTERMOST + INNERMOST},
            "2D FFT": {"filter": "fft2d"},
            "random after flatten": order_settings("random:0"),
        },
    ),
    claims=(
        Claim(
            "orders with the output channel outermost improve FedAvg",
            tuple(above(order, "FedAvg") for order in OUTERMOST),
        ),
        Claim(
            "orders with the output channel outermost are better than those with it innermost",
            tuple(above(outer, inner) for outer in OUTERMOST for inner in INNERMOST),
        ),
        Claim(
            "a random order destroys the gain: within 3 points of FedAvg, and below 0123",
            (close("random after flatten", "FedAvg", 3), above("0123", "random after flatten")),
        ),
        Claim(
            "orders with the output channel innermost end no better than FedAvg: within 4 points",
            tuple(close(order, "FedAvg", 4) for order in INNERMOST),
        ),
        Claim("the 2-D FFT improves FedAvg", (above("2D FFT", "FedAvg"),)),
        Claim("the 2-D FFT is worse than 0123", (above("0123", "2D FFT"),)),
    ),
    draw=figures.dots,
)

ALPHAS = (100.0, 5.0, 0.6, 0.1)


def _centralised(preset: Preset) -> list[Cell]:
    cells = []
    for dataset in DATASETS:
        places: dict[str, dict[str, Any]] = {"centralised": dict(preset.centralised)}
        places |= {f"alpha {alpha:g}": {"alpha": alpha} for alpha in ALPHAS}
        for place, changes in places.items():
            for ending, kind in (("baseline", "none"), ("+ FFT", "fft")):
                config = preset.config(dataset, **changes, filter=kind)
                seeds = preset.seeds_for("centralised")
                cells.append(Cell(f"{place}: {ending}", dataset, config, seeds))
    return cells


CENTRALISED = Experiment(
    name="centralised",
    title="From centralised to federated",
    reference="Table VI",
    cells=_centralised,
    claims=(
        Claim(
            "in centralised training the filter hurts slightly: by no more than 3 points",
            (
                above("centralised: baseline", "centralised: + FFT"),
                close("centralised: baseline", "centralised: + FFT", 3),
            ),
        ),
        Claim(
            "in every federation the filter helps",
            tuple(above(f"alpha {a:g}: + FFT", f"alpha {a:g}: baseline") for a in ALPHAS),
        ),
        Claim(
            "the gain is larger at alpha 0.1 than at alpha 100",
            (
                gains_more(
                    "alpha 0.1: + FFT",
                    "alpha 0.1: baseline",
                    "alpha 100: + FFT",
                    "alpha 100: baseline",
                ),
            ),
        ),
    ),
    draw=figures.dots,
)

RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


def _ratio(preset: Preset) -> list[Cell]:
    rows: dict[str, dict[str, Any]] = {"FedAvg": {}}
    rows |= {f"{ratio:g}": {"filter": "fft", "ratio": ratio} for ratio in RATIOS}
    return _ablation(preset, "ratio", rows)


RATIO = Experiment(
    name="ratio",
    title="Filtering ratio",
    reference="Figure 7",
    cells=_ratio,
    claims=(
        Claim(
            "every ratio from 0.01 to 0.2 improves FedAvg",
            tuple(above(f"{ratio:g}", "FedAvg") for ratio in (0.01, 0.02, 0.05, 0.1, 0.2)),
        ),
        Claim(
            "ratios from 0.01 to 0.2 lie within 3 points of each other (76.70 to 79.03)",
            tuple(close(f"{ratio:g}", "0.05", 3) for ratio in (0.01, 0.02, 0.1, 0.2)),
        ),
        Claim("large ratios lose: 0.5 is worse than 0.05", (above("0.05", "0.5"),)),
        Claim("0.5 is still better than FedAvg", (above("0.5", "FedAvg"),)),
    ),
    draw=figures.ratio,
)
