"""At what size the experiments are run: as in the paper, on a CPU, or as a smoke test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from specgrad_fl import toml
from specgrad_fl.config import Config

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Scenario:
    """Settings that differ from the base, how many seeds, and whether only for a few contenders."""

    settings: Settings
    seeds: int = 1
    few: bool = False


@dataclass(frozen=True)
class Preset:
    """A size of all experiments.

    base: settings that every run shares
    seeds, seeds_of: seeds of a cell, and those of experiments that have others
    datasets, backbones: what stands in for the paper's; one that is absent is left out
    centralised: settings of training in one place
    diagnosed, diagnosed_alphas: rounds at which gradients are collected, and skews
    settings_grid: clients, local epochs and participation of the figure on FL settings
    writers: of the natural partition, which has one client for each
    all_filtered: columns of the table of methods in which each method has the filter too
    other_scenarios: where the experiment on the mechanism is tried besides, with the number of
        seeds and whether by its main contenders alone
    full_size: settings that bring the base to the paper's network, image size and rounds
    stand_ins: names of the paper in tables, and what was run in their place
    """

    name: str
    base: Config
    seeds: tuple[int, ...]
    datasets: Mapping[str, Settings]
    backbones: Mapping[str, Settings]
    centralised: Settings
    diagnosed: tuple[int, ...]
    diagnosed_alphas: tuple[float, ...]
    settings_grid: Mapping[str, tuple[float, ...]]
    timed_rounds: int
    writers: int
    all_filtered: tuple[str, ...] = ()
    other_scenarios: Mapping[str, Scenario] = field(default_factory=dict)
    seeds_of: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    full_size: Settings = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    @property
    def reductions(self) -> tuple[str, ...]:
        """Every difference from the paper's protocol, in words."""
        words = toml.read(Path(__file__).with_suffix(".toml"))
        return (*words[self.name], *words["all"])

    def shown(self, text: str) -> str:
        """A row or column of the paper as a table shows it: with the name of what was run."""
        for theirs, ours in self.stand_ins.items():
            text = text.replace(theirs, f"{ours} for {theirs}")
        return text

    def config(
        self, dataset: str = "CIFAR-10", backbone: str = "ResNet-20", **changes: Any
    ) -> Config | None:
        """The configuration of a cell; ``None`` where this preset leaves it out."""
        if dataset not in self.datasets or backbone not in self.backbones:
            return None
        settings = {**self.backbones[backbone], **self.datasets[dataset], **changes}
        return self.base.replace(**settings)

    def seeds_for(self, experiment: str) -> tuple[int, ...]:
        return self.seeds_of.get(experiment, self.seeds)


PROTOCOL: Settings = {
    "partition_options": {"mode": "refill"},
    "clients": 100,
    "active": 10,
    "alpha": 0.1,
    "epochs": 5,
}
SHIFT = {"partition": "feature_shift"}
WRITERS = {"partition": "natural", "clients": 0}
# one client holds everything, and a round is an epoch
IN_ONE_PLACE = {"clients": 1, "active": 1, "partition": "iid", "epochs": 1}

SETTINGS_GRID = {"clients": (20, 50, 100), "epochs": (1, 5, 10), "participation": (0.05, 0.1, 0.2)}


# of the preset cpu, whose other experiments have one seed
THREE_SEEDS = (
    *("strategies", "mechanism", "spectral-bias", "cka"),
    *("tuned", "why", "relatives", "adaptive"),
)


def paper() -> Preset:
    """The paper's protocol, for a GPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Preset(
        name="paper",
        base=Config(**PROTOCOL, rounds=300, eval_every=1, eval_tail=10, device=device),
        seeds=(0, 1, 2),
        datasets={
            "CIFAR-10": {"dataset": "cifar10"},
            "CIFAR-100": {"dataset": "cifar100"},
            "Tiny-ImageNet": {"dataset": "tiny_imagenet"},
            "CIFAR-10-C": {"dataset": "cifar10_c", **SHIFT},
            "CIFAR-100-C": {"dataset": "cifar100_c", **SHIFT},
            "FEMNIST": {"dataset": "femnist", "data_options": {"fraction": 0.05}, **WRITERS},
            "BloodMNIST": {"dataset": "bloodmnist"},
            "Yahoo! Answers": {"dataset": "yahoo_answers", "model": "textcnn"},
        },
        backbones={
            "ResNet-20": {"model": "resnet20"},
            "ResNet-18": {"model": "resnet18"},
            "WRN-56-2": {"model": "wrn56_2"},
            "DenseNet-121": {"model": "densenet121"},
            "ViT": {"model": "vit"},
            "CNN": {"model": "femnist_cnn"},
        },
        centralised=IN_ONE_PLACE,
        diagnosed=(0, 30, 60, 90),
        diagnosed_alphas=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 100.0),
        settings_grid=SETTINGS_GRID,
        timed_rounds=10,
        writers=180,
        other_scenarios={
            "CIFAR-10, alpha 0.6": Scenario({"alpha": 0.6}, 3),
            "CIFAR-100, alpha 0.1": Scenario({"dataset": "cifar100"}, 3),
        },
    )


def cpu() -> Preset:
    """For a machine without a GPU: minutes for a run."""
    small: Settings = {"dataset": "cifar10", "data_options": {"size": 16}, "model": "resnet8"}
    in_one_place = {**IN_ONE_PLACE, "rounds": 20}
    return Preset(
        name="cpu",
        base=Config(**PROTOCOL, **small, rounds=40, eval_every=5, eval_tail=5),
        seeds=(0,),
        seeds_of=dict.fromkeys(THREE_SEEDS, (0, 1, 2)),
        datasets={
            "CIFAR-10": {},
            "CIFAR-10-C": {"dataset": "cifar10_c", **SHIFT},
            "FEMNIST": {"dataset": "mnist_by_writer", "data_options": {}, **WRITERS},
            "Yahoo! Answers": {
                "dataset": "parquet:data/yahoo_answers_small",
                "data_options": {},
                "model": "textcnn",
                "clients": 20,
                "active": 4,
            },
        },
        backbones={"ResNet-20": {}, "ViT": {"model": "vit_small"}, "CNN": {}},
        centralised=in_one_place,
        diagnosed=(0, 10, 20, 30),
        diagnosed_alphas=(0.1, 100.0),
        settings_grid=SETTINGS_GRID,
        timed_rounds=4,
        writers=539,
        all_filtered=("CIFAR-10, alpha 0.1",),
        full_size={
            "model": "resnet20",
            "data_options": {},
            "rounds": 300,
            "eval_every": 10,
            "eval_tail": 10,
        },
        stand_ins={"ResNet-20": "ResNet-8", "FEMNIST": "MNIST by writer", "ViT": "a small ViT"},
        other_scenarios={
            "CIFAR-10, alpha 100": Scenario({"alpha": 100.0}, 3, few=True),
            "CIFAR-10, centralised": Scenario(in_one_place, 3, few=True),
            "CIFAR-10, centralised, 60 epochs": Scenario({**in_one_place, "rounds": 60}, few=True),
            "CIFAR-10, alpha 0.1, learning rate 0.02": Scenario({"lr": 0.02}, few=True),
            "CIFAR-10, alpha 0.6": Scenario({"alpha": 0.6}),
            "CIFAR-100 at 16 x 16, alpha 0.1": Scenario({"dataset": "cifar100"}),
            "CIFAR-10, alpha 0.1, no norm layers": Scenario(
                {"model": "specgrad_study.paper.plain:resnet8"}
            ),
        },
    )


def smoke() -> Preset:
    """Seconds for a run: shows that everything works, and nothing about the paper."""
    digits: Settings = {"dataset": "digits", "clients": 12, "active": 2, "alpha": 0.1}
    return Preset(
        name="smoke",
        base=Config(**digits, rounds=2, epochs=1, eval_every=1, eval_tail=1, workers=1),
        seeds=(0,),
        seeds_of={"strategies": (0, 1)},
        datasets={
            "CIFAR-10": {},
            "CIFAR-10-C": {"data_options": {"corrupted": True}, "samples_per_client": 100, **SHIFT},
            "FEMNIST": {"partition": "shards"},
            "BloodMNIST": {"alpha": 1.0},
        },
        backbones={
            "ResNet-20": {},
            "ViT": {"model": "vit_small", "model_options": {"dim": 48, "mlp": 96}},
            "CNN": {},
        },
        centralised=IN_ONE_PLACE,
        diagnosed=(0, 1),
        diagnosed_alphas=(0.1, 100.0),
        settings_grid={"clients": (6, 12), "epochs": (1, 2), "participation": (0.25, 0.5)},
        timed_rounds=2,
        writers=12,
        stand_ins={"ResNet-20": "ResNet-8", "FEMNIST": "sorted digits", "ViT": "a tiny ViT"},
        other_scenarios={"CIFAR-10, alpha 100": Scenario({"alpha": 100.0}, few=True)},
    )


PRESETS = {"paper": paper, "cpu": cpu, "smoke": smoke}
