"""What Flower's simulation costs over one process: ``python -m benchmarks.flower``.

The same experiment in one process and as a Flower app in Flower's simulation (`flwr[simulation]`,
Ray). The first round is left out: it builds models and plans.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from specgrad_fl import Config, train
from specgrad_fl.flower import app
from specgrad_fl.flower.federation import LOOPBACK, answers, connect, environment, flwr, free_ports
from specgrad_fl.runs import RunDirectory

EXPERIMENTS = {
    "digits, ResNet-8, 3 clients": {"clients": 6, "active": 3},
    "digits, ResNet-8, 12 clients": {"clients": 12, "active": 12},
    "digits, ResNet-20, 3 clients": {"clients": 6, "active": 3, "model": "resnet20"},
}


def seconds(run: RunDirectory) -> float:
    """Median wall-clock time of the training part of each round but the first."""
    return statistics.median(record["seconds"]["train"] for record in run.records()[1:])


@contextlib.contextmanager
def simulation(folder: Path):
    """The environment of a SuperLink that simulates its nodes."""
    (port,) = free_ports(1)
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


def simulated(config: Config, folder: Path, env: dict[str, str]) -> RunDirectory:
    """A run of the app with as many nodes as clients."""
    app.write(folder / "app", config, str(folder / "run"))
    nodes = f"num-supernodes={config.clients}"
    flwr("run", str(folder / "app"), "specgrad", "--federation-config", nodes, env=env)
    run = RunDirectory(folder / "run")
    while not run.finished:
        time.sleep(1)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    print(f"load {os.getloadavg()[0]:.1f}")
    print("| experiment | one process | simulation | overhead of a round |\n|---|---|---|---|")
    for name, settings in EXPERIMENTS.items():
        config = Config(rounds=rounds, batch_size=64, eval_every=1, workers=1, **settings)
        with tempfile.TemporaryDirectory() as folder:
            here = seconds(train(config, Path(folder) / "here"))
            with simulation(Path(folder)) as env:
                there = seconds(simulated(config, Path(folder), env))
        print(f"| {name} | {here:.2f} s | {there:.2f} s | {there - here:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
