"""At what size the experiments are run: as in the paper, on a CPU, or as a smoke test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specgrad_fl.config import Config

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """A size of all experiments.

    base: settings that every run shares
    seeds, seeds_of: seeds of a cell, and those of experiments that have others
    datasets, backbones: what stands in for the paper's; one that is absent is left out
    centralised: settings of training in one place
    diagnosed, diagnosed_alphas: rounds at which gradients are collected, and skews
    settings_grid: clients, local epochs and participation of the figure on FL settings
    reductions: every difference from the paper's protocol, in words
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
    reductions: tuple[str, ...]
    seeds_of: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

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


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


CHOICES = (
    "Where the paper is silent the trainer's defaults hold: learning rate 0.1 with factor 0.998 "
    "after each round (FedDyn 0.9995), clipping at norm 10, random flips and crops, GroupNorm "
    "with two groups; methods are not tuned unless tuned files are given.",
    "The paper does not say which round it reports; the mean over the evaluations of the last "
    "ten rounds is compared.",
)


def paper() -> Preset:
    """The paper's protocol, for a GPU."""
    return Preset(
        name="paper",
        base=Config(
            clients=100,
            active=10,
            alpha=0.1,
            rounds=300,
            epochs=5,
            partition_mode="refill",
            eval_every=5,
            eval_tail=10,
            device=_device(),
        ),
        seeds=(0, 1, 2),
        datasets={
            "CIFAR-10": {"dataset": "cifar10"},
            "CIFAR-100": {"dataset": "cifar100"},
            "Tiny-ImageNet": {"dataset": "tiny_imagenet"},
            "CIFAR-10-C": {"dataset": "cifar10_c", "partition": "feature_shift"},
            "CIFAR-100-C": {"dataset": "cifar100_c", "partition": "feature_shift"},
            "FEMNIST": {"dataset": "femnist", "partition": "natural", "clients": 200},
        },
        backbones={
            "ResNet-20": {"model": "resnet20"},
            "ResNet-18": {"model": "resnet18"},
            "WRN-56-2": {"model": "wrn56_2"},
            "DenseNet-121": {"model": "densenet121"},
            "ViT": {"model": "vit"},
            "CNN": {"model": "femnist_cnn"},
        },
        centralised={"clients": 1, "active": 1, "partition": "iid", "epochs": 1},
        diagnosed=(0, 30, 60, 90),
        diagnosed_alphas=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 100.0),
        settings_grid={
            "clients": (20, 50, 100),
            "epochs": (1, 5, 10),
            "participation": (0.05, 0.1, 0.2),
        },
        timed_rounds=10,
        reductions=(
            "No reduction of size: 100 clients, 10 active, 300 rounds, 5 local epochs, ResNet-20, "
            "3 seeds, equal Dirichlet partition with refilled classes.",
            "FEMNIST: 200 writers drawn from all, one client each, 10 or 20 of them active; the "
            "paper names neither their number nor the model.",
            "Centralised training: 300 epochs of one client that holds all samples.",
            "FL settings: the paper's figure is not given in numbers; 20, 50, 100 clients, 1, 5, "
            "10 epochs and participation 0.05, 0.1, 0.2 are run.",
            *CHOICES,
        ),
    )


def cpu() -> Preset:
    """For a machine without a GPU: minutes for a run."""
    return Preset(
        name="cpu",
        base=Config(
            dataset="cifar10",
            data_options={"size": 16},
            model="resnet8",
            partition_mode="refill",
            clients=100,
            active=10,
            alpha=0.1,
            rounds=40,
            epochs=5,
            eval_every=5,
            eval_tail=5,
        ),
        seeds=(0,),
        seeds_of={"strategies": (0, 1)},
        datasets={
            "CIFAR-10": {},
            "CIFAR-10-C": {
                "dataset": "cifar10_c",
                "data_options": {},
                "partition": "feature_shift",
            },
            "FEMNIST": {
                "dataset": "mnist_by_writer",
                "data_options": {},
                "partition": "natural",
                "clients": 200,
            },
        },
        backbones={"ResNet-20": {}, "ViT": {"model": "vit_small"}, "CNN": {}},
        centralised={"clients": 1, "active": 1, "partition": "iid", "epochs": 1, "rounds": 20},
        diagnosed=(0, 10, 20, 30),
        diagnosed_alphas=(0.1, 100.0),
        settings_grid={
            "clients": (20, 100),
            "epochs": (1, 5),
            "participation": (0.05, 0.1),
        },
        timed_rounds=4,
        reductions=(
            "40 communication rounds instead of 300.",
            "ResNet-8 (one block in each of the three stages, 78 thousand parameters) instead of "
            "ResNet-20.",
            "CIFAR-10 images of 16 x 16 pixels (means of 2 x 2) instead of 32 x 32.",
            "One seed instead of three, and two for the filtering strategies; a cell that has "
            "more finished seeds shows them all.",
            "CIFAR-100, Tiny-ImageNet and CIFAR-100-C, and the backbones ResNet-18, WRN-56-2 and "
            "DenseNet-121 are left out; ViT is the small one (dimension 192, 6 blocks).",
            "FEMNIST is replaced by MNIST with its writers (QMNIST), 200 of them, with ResNet-8.",
            "Centralised training: 20 epochs of one client that holds all samples.",
            "Gradients are collected at rounds 0, 10, 20, 30 instead of 0, 30, 60, 90, at "
            "alpha 0.1 and 100 alone.",
            "FL settings: two values of each instead of the paper's range.",
            *CHOICES,
        ),
    )


def smoke() -> Preset:
    """Seconds for a run: shows that everything works, and nothing about the paper."""
    return Preset(
        name="smoke",
        base=Config(
            dataset="digits",
            clients=12,
            active=3,
            alpha=0.1,
            rounds=2,
            epochs=1,
            eval_every=1,
            eval_tail=1,
            workers=1,
        ),
        seeds=(0,),
        seeds_of={"strategies": (0, 1)},
        datasets={
            "CIFAR-10": {},
            "CIFAR-10-C": {
                "data_options": {"corrupted": True},
                "partition": "feature_shift",
                "samples_per_client": 100,
            },
            "FEMNIST": {"partition": "shards"},
        },
        backbones={
            "ResNet-20": {},
            "ViT": {"model": "vit_small"},
            "CNN": {},
        },
        centralised={"clients": 1, "active": 1, "partition": "iid"},
        diagnosed=(0, 1),
        diagnosed_alphas=(0.1, 100.0),
        settings_grid={"clients": (6, 12), "epochs": (1, 2), "participation": (0.25, 0.5)},
        timed_rounds=2,
        reductions=(
            "A smoke test: it shows that the experiment runs, and says nothing about the paper.",
            "Digits of 8 x 8 pixels instead of CIFAR-10, ResNet-8 instead of ResNet-20, the small "
            "ViT; 12 clients, 3 active, 2 rounds of one epoch, one seed.",
            "Corrupted digits stand in for CIFAR-10-C, sorted shards for FEMNIST; other data sets "
            "and backbones are left out.",
            *CHOICES,
        ),
    )


PRESETS = {"paper": paper, "cpu": cpu, "smoke": smoke}
