"""Cost of Flower over one process: ``python -m benchmarks.flower``, with `flwr[simulation]`.

The same experiment in one process, as a Flower app in Flower's simulation (Ray), and on the
SuperNodes that `train --engine flower` starts. The first round is left out: it builds models and
plans, and in simulation Ray's workers import torch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from specgrad_fl import Config, train
from specgrad_fl.flower import app
from specgrad_fl.flower.federation import LOOPBACK, answers, connect, environment, flwr, free_ports
from specgrad_fl.runs import RunDirectory

EXPERIMENTS = {
    "resnet8": {"clients": 6, "active": 3},
    "resnet20": {"clients": 6, "active": 3, "model": "resnet20"},
    "twelve": {"clients": 12, "active": 12},
}


def seconds(run: RunDirectory) -> float:
    """Median wall-clock time of the training part of each round but the first."""
    return statistics.median(record["seconds"]["train"] for record in run.records()[1:])


@contextlib.contextmanager
def superlink(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a SuperLink that simulates its nodes."""
    (port,) = free_ports(1)
    # Ray's workers would give way to every other process of the machine
    env = {**environment(folder / "home"), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    command = ["flower-superlink", "--insecure", "--simulation", "--host", LOOPBACK]
    with open(folder / "superlink.txt", "wb") as log:
        link = subprocess.Popen(
            [*command, "--port", str(port)], cwd=folder, env=env, stdout=log, stderr=log
        )
    try:
        while not answers(LOOPBACK, port):
            time.sleep(0.2)
        connect(folder / "home", f"{LOOPBACK}:{port}")
        yield env
    finally:
        link.terminate()
        link.wait()


def simulated(config: Config, folder: Path) -> RunDirectory:
    """A run of the app with as many nodes as clients."""
    app.write(folder / "app", config, str(folder / "run"))
    nodes = f"num-supernodes={config.clients}"
    with superlink(folder) as env:
        words = ["run", str(folder / "app"), "specgrad", "--federation-config", nodes]
        number = str(flwr(*words, env=env)["run-id"])
        command = ["flwr", "log", number, "specgrad", "--stream"]
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    return RunDirectory(folder / "run")


def on_nodes(config: Config, folder: Path) -> RunDirectory:
    """A run on three SuperNodes of this machine."""
    return train(config.replace(engine="flower", nodes=3), folder / "run")


WAYS = {"simulation": simulated, "processes": on_nodes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--experiments", nargs="+", choices=EXPERIMENTS, default=[*EXPERIMENTS])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    print(
        "| experiment | one process | where | there | overhead of a round |\n|---|---|---|---|---|"
    )
    for name in arguments.experiments:
        settings = EXPERIMENTS[name]
        config = Config(rounds=arguments.rounds, batch_size=64, workers=1, **settings)
        for way in arguments.ways:
            with tempfile.TemporaryDirectory() as folder:
                here = seconds(train(config, Path(folder) / "here"))
                there = seconds(WAYS[way](config, Path(folder)))
            cost = f"{there - here:.2f} s"
            print(f"| {name} | {here:.2f} s | {way} | {there:.2f} s | {cost} |", flush=True)


if __name__ == "__main__":
    main()
