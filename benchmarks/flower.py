"""What the Flower engine costs over one process: ``python -m benchmarks.flower``.

The same experiment in one process and on three SuperNodes of this machine, with TLS and node keys.
The first round is left out: it builds models and plans.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from specgrad_fl import Config, train

EXPERIMENTS = {
    "digits, ResNet-8, 3 clients": {"clients": 6, "active": 3},
    "digits, ResNet-8, 12 clients": {"clients": 12, "active": 12},
    "digits, ResNet-20, 3 clients": {"clients": 6, "active": 3, "model": "resnet20"},
}


def seconds(config: Config, out: Path) -> list[float]:
    """Wall-clock time of the training part of each round but the first."""
    return [record["seconds"]["train"] for record in train(config, out).records()[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    print("| experiment | one process | Flower | overhead of a round | of a client and round |")
    print("|---|---|---|---|---|")
    for name, settings in EXPERIMENTS.items():
        config = Config(rounds=rounds, batch_size=64, eval_every=1, workers=1, **settings)
        with tempfile.TemporaryDirectory() as folder:
            here = statistics.median(seconds(config, Path(folder) / "here"))
            flower = config.replace(engine="flower", nodes=3)
            there = statistics.median(seconds(flower, Path(folder) / "there"))
        more = there - here
        each = more / config.active
        print(
            f"| {name} | {here:.2f} s | {there:.2f} s | {more:.2f} s | {each:.2f} s |", flush=True
        )


if __name__ == "__main__":
    main()
