"""Growth of a run's cost with clients, active clients, rounds and weights.

``python -m benchmarks.growth --json growth.json --plot growth.png``. Every case is a process of its
own that plays a few rounds of small clients (10 samples of 8 x 8 pixels each) by ``train``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
from specgrad_fl import Config, resume, train
from torch import nn

from benchmarks import machine
from benchmarks.peers.turns import age, mib_of, written_by

SAMPLES, CLASSES, PIXELS = 10, 10, 8
# of the model of all cases but those that vary it
FEW_WEIGHTS = 10**4
CASES: dict[str, list[dict[str, int]]] = {
    "clients": [{"clients": 10**k, "active": 10} for k in (1, 2, 3, 4)],
    "active": [{"clients": 10**4, "active": 10**k} for k in (1, 2, 3)],
    "rounds": [{"clients": 10, "active": 2, "rounds": 10**k} for k in (1, 2, 3, 4)],
    "weights": [{"clients": 10, "active": 2, "rounds": 8, "weights": 10**k} for k in range(4, 9)],
    "states": [{"clients": 10**4, "active": 1000, "rounds": 12, "scaffold": 1}],
}
# rounds at the end over which the cost of one is taken
LAST = 20


def arrays(clients: int) -> dict[str, Any]:
    """Random images of as many writers, for ``--dataset benchmarks.growth:arrays``."""
    draw = np.random.default_rng(0)
    count = clients * SAMPLES
    x = draw.integers(0, 256, (count, PIXELS, PIXELS, 1), dtype=np.uint8)
    y = np.arange(count) % CLASSES
    writers = np.repeat(np.arange(clients), SAMPLES)
    return {"x_train": x, "y_train": y, "writer_train": writers, "x_test": x[:100],
            "y_test": y[:100]}  # fmt: skip


def network(weights: int) -> nn.Module:
    """Two layers with about so many weights, for ``--model benchmarks.growth:network``."""
    inputs = PIXELS**2
    width = max(1, weights // (inputs + CLASSES + 1))
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(),
                         nn.Linear(width, CLASSES))  # fmt: skip


def settings(case: dict[str, int]) -> dict[str, Any]:
    """A configuration without evaluation but after the last round."""
    clients, rounds = case["clients"], case.get("rounds", 30)
    return {
        "dataset": "benchmarks.growth:arrays",
        "data_options": {"clients": clients},
        "model": "benchmarks.growth:network",
        "model_options": {"weights": case.get("weights", FEW_WEIGHTS)},
        "partition": "natural",
        "clients": clients,
        "active": case["active"],
        "method": "scaffold" if case.get("scaffold") else "fedavg",
        "batch_size": SAMPLES,
        "rounds": rounds,
        "eval_every": rounds,
        "eval_tail": 0,
        "state_ram_mib": 64,
        "machine_options": {"stack": "auto"},
    }


def play(case: dict[str, int]) -> dict[str, float]:
    """Seconds, memory and bytes of one case, played in this process."""
    config = Config(**settings(case))
    ends: list[float] = []
    played: list[float] = []
    found: dict[str, float] = {"mib": 0.0}

    def watch(record: dict[str, Any], _: Config) -> None:
        if not ends:
            found["start"] = age() - record["seconds"]["round"]
        if record["round"] == max(1, config.rounds - 1 - LAST):
            found["written"] = -written_by()
        if record["round"] % max(1, config.rounds // 10) == 0:
            found["mib"] = max(found["mib"], mib_of())
        ends.append(time.perf_counter())
        played.append(record["seconds"]["round"])
        if len(ends) == config.rounds - 1:  # the last round has an evaluation and its columns
            found["written"] += written_by()

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(config, run, watch)
        counted = range(max(2, len(ends) - LAST), len(ends) - 1)  # the last one is evaluated
        turns = [ends[k] - ends[k - 1] for k in counted]
        found["round"] = statistics.median(turns)
        found["books"] = statistics.median(
            turn - played[k] for k, turn in zip(counted, turns, strict=True)
        )
        found["written"] /= min(LAST, config.rounds - 2)
        found["resume"] = _seconds_to_resume(run, config)
    return found


def _seconds_to_resume(run: Path, config: Config) -> float:
    """From a stored run to its next round, its record included."""
    own = [config.dataset, config.model]
    begun, ended = time.perf_counter(), [0.0]

    def watch(record: dict[str, Any], _: Config) -> None:
        ended[0] = time.perf_counter()

    resume(run, watch, {"rounds": config.rounds + 1}, own)
    return ended[0] - begun


def measure(sweep: str) -> list[dict[str, Any]]:
    """Cases with their costs, each played in a process of its own."""
    rows = []
    for case in CASES[sweep]:
        command = [sys.executable, "-m", "benchmarks.growth", "--case", json.dumps(case)]
        done = subprocess.run(command, cwd=machine.ROOT, check=True, capture_output=True, text=True)
        rows.append({"case": case, **json.loads(done.stdout.splitlines()[-1])})
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


SHOWN = {
    "round": "seconds a round",
    "books": "of it records and checkpoint",
    "mib": "memory, MiB",
    "written": "bytes written a round",
    "start": "seconds to the first round",
    "resume": "seconds to resume and play a round",
}
AXES = {
    "clients": "clients, 10 active",
    "active": "active of 10,000 clients",
    "rounds": "rounds, 2 of 10 clients active",
    "weights": "weights, 2 of 10 clients active",
}


def table(result: dict[str, Any]) -> str:
    """A Markdown table of all cases."""
    lines = ["| varied | case | " + " | ".join(SHOWN.values()) + " |", "|---" * 8 + "|"]
    for sweep, rows in result["cases"].items():
        for row in rows:
            case = ", ".join(f"{value:,} {name}" for name, value in row["case"].items())
            numbers = " | ".join(f"{row[name]:.3g}" if row[name] < 1000 else f"{row[name]:,.0f}"
                                 for name in SHOWN)  # fmt: skip
            lines.append(f"| {sweep} | {case} | {numbers} |")
    return "\n".join(lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """A column for what varies, a row for each cost, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sweeps = [sweep for sweep in result["cases"] if sweep != "states"]
    figure, axes = pyplot.subplots(
        len(SHOWN), len(sweeps), figsize=(3.2 * len(sweeps), 2 * len(SHOWN)), sharex="col",
        sharey="row", squeeze=False,
    )  # fmt: skip
    for column, sweep in enumerate(sweeps):
        rows = result["cases"][sweep]
        for line, (name, title) in enumerate(SHOWN.items()):
            axis = axes[line][column]
            axis.loglog([row["case"][sweep] for row in rows], [row[name] for row in rows], "o-")
            axis.grid(alpha=0.3)
            if not column:
                axis.set_ylabel("\n".join(textwrap.wrap(title, 18)), fontsize=8)
        axes[-1][column].set_xlabel(AXES[sweep])
    for (axis, *_), name in zip(axes, SHOWN, strict=True):
        values = [row[name] for sweep in sweeps for row in result["cases"][sweep]]
        decades = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        axis.set_ylim(*(10.0**each for each in decades))
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--case", type=json.loads, help="play one case here and print its costs")
    parser.add_argument("--sweeps", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--json", type=Path, help="all figures; other sweeps in it are kept")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(play(arguments.case)))
        return
    machine.measure_parts("cases", arguments.sweeps, measure, arguments, table, plot)


if __name__ == "__main__":
    main()
