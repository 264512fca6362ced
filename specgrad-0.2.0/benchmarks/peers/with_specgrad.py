"""This trainer, by its function ``train``, with its records and checkpoints."""

from __future__ import annotations

import sys
from typing import Any

from safetensors.torch import load_file
from specgrad_fl import Config, train

from benchmarks.peers.turns import Turns
from benchmarks.peers.workloads import LEARNING_RATE


def settings(turns: Turns) -> dict[str, Any]:
    """Plain SGD as in the others: no clipping, no decay, no augmentation, no evaluation."""
    workload = turns.workload
    return {
        "dataset": "benchmarks.peers.workloads:arrays",
        "data_options": {"workload": turns.name},
        "model": "benchmarks.peers.workloads:model",
        "model_options": {"workload": turns.name},
        "partition": "natural",
        "clients": workload.clients,
        "active": workload.clients,
        "batch_size": workload.batch,
        "lr": LEARNING_RATE,
        "lr_decay": 1.0,
        "weight_decay": 0.0,
        "clip": 0.0,
        "augment": False,
        "rounds": 10**6,
        "eval_every": 10**6,
        "eval_tail": 0,
        "machine_options": {"stack": "auto"},
    }


def main() -> None:
    turns = Turns()
    run = turns.folder / "run"

    def announce(sentence: str) -> None:
        print(sentence, file=sys.stderr)
        if sentence.startswith("data: "):  # the last one before the first round
            turns.start()

    def watch(record: dict[str, Any], config: Config) -> None:
        turns.next(
            {}
            if record["round"] > 1
            else {
                name.removeprefix("model."): tensor
                for name, tensor in load_file(run / "last.safetensors").items()
                if name.startswith("model.")
            }
        )

    train(Config(**settings(turns)), run, watch, announce)


if __name__ == "__main__":
    main()
