"""Accuracy with poisoned clients, by rule of aggregation: `python -m benchmarks.poisoned`.

Ten clients on digits, all active in each of 30 rounds, a small MLP, seeds 0 to 2. The tables that
it prints are those in docs/trust.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from specgrad_fl import prepare
from specgrad_fl.config import Config
from specgrad_fl.engine import Engine
from specgrad_fl.errors import Diverged
from specgrad_fl.progress import silent
from specgrad_fl.runs import RunDirectory
from torch import Tensor, nn

SETTINGS: dict[str, Any] = {
    "model": "benchmarks.poisoned:mlp",
    "clients": 10,
    "active": 10,
    "alpha": 0.5,
    "rounds": 30,
    "batch_size": 20,
    "eval_every": 30,
    "workers": 1,
}
RULES: dict[str, dict[str, Any]] = {
    "mean, no guard": {"guard": 0.0},
    "mean with the guard (default)": {},
    "median": {"aggregation": "median"},
    "trimmed mean": {"aggregation": "trimmed_mean"},
}
# from the weights that were sent and those that a client made of them
Attack = Callable[[Tensor, Tensor], Tensor]
ATTACKS: dict[str, Attack] = {
    "all weights 1e4": lambda start, made: torch.full_like(made, 1e4),
    "update times -5": lambda start, made: start - 5 * (made - start),
}
SEEDS = (0, 1, 2)
# of all weights of one client of ten, and of three of them
VALUES = (1e2, 1e4, 1e10, 1e38, float("nan"))


def mlp(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """A hidden layer of 64."""
    inputs = in_channels * image_size**2
    layers = (nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, num_classes))
    return nn.Sequential(*layers)


def accuracy(settings: dict[str, Any], poisoned: int, attack: Attack) -> float:
    """Final test accuracy if the first ``poisoned`` clients send something else."""
    config = Config(**{**SETTINGS, **settings})
    dataset = prepare.load_data(config)
    partition = prepare.divide(config, dataset)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(config, dataset, partition, RunDirectory(Path(folder))).start()
        honest = engine.executor.train

        def train(*arguments: Any) -> Any:
            reports = honest(*arguments)
            for place, row in enumerate(engine.board.results[:poisoned]):
                row.copy_(attack(engine.board.weights, row))
                finite = bool(torch.isfinite(row).all())
                reports[place] = replace(reports[place], finite=finite)
            return reports

        engine.executor.train = train  # type: ignore[method-assign]
        try:
            engine.play(silent)
        except Diverged:
            return 0.0
        finally:
            engine.close()
        found: float = engine.records[-1]["test_accuracy"]
        return found


def shown(settings: dict[str, Any], poisoned: int, attack: Attack) -> str:
    """Mean accuracy over the seeds in percent, and half the distance from worst to best."""
    found = [accuracy({**settings, "seed": seed}, poisoned, attack) for seed in SEEDS]
    return f"{100 * fmean(found):.1f} ± {50 * (max(found) - min(found)):.1f}"


def print_values() -> None:
    """Print the table of how large a poisoned value may be."""
    print("| poisoned |", " | ".join(f"{value:g}" for value in VALUES), "|")
    print("|---" * (len(VALUES) + 1) + "|")
    for count, rule in ((1, "mean with the guard (default)"), (3, "median")):

        def fill(value: float) -> Attack:
            return lambda start, made: torch.full_like(made, value)

        cells = [shown(RULES[rule], count, fill(value)) for value in VALUES]
        print(f"| {count} of 10, {rule} |", " | ".join(cells), "|", flush=True)


def main() -> None:
    """Print the tables."""
    print_values()
    columns = [(0, ""), *((count, name) for name in ATTACKS for count in (1, 3))]
    print("| rule |", " | ".join(f"{n} of 10 {a}".strip() for n, a in columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for rule, settings in RULES.items():
        cells = [
            shown(settings, count, ATTACKS[name or "update times -5"]) for count, name in columns
        ]
        print(f"| {rule} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
