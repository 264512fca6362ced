"""kill -9 at random moments, for every method, with one worker and with two: to the byte.

In the suite a moment or two for some of them; ``make test-kills`` takes thirty for all.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
import torch
from specgrad_fl import training
from specgrad_fl.methods import METHODS
from specgrad_fl.records import essence
from specgrad_fl.runs import RunDirectory

MOMENTS = int(os.environ.get("SPECGRAD_KILLS", "2"))
EVERY = [(method, workers) for method in METHODS for workers in (1, 2)]
FEW = [("fedavg", 2), ("scaffold", 1), ("feddyn", 2)]


def contents(run: RunDirectory) -> dict[str, bytes]:
    names = ["config.toml", "partition.npz", "last.safetensors", "best.safetensors"]
    files = [run.path / name for name in names] + sorted(run.clients_path.glob("*"))
    return {path.name: path.read_bytes() for path in files}


def finish(config, path):
    run = RunDirectory(path)
    return training.resume(path) if run.exists else training.train(config, path)


def killed_after(seconds: float, config, path) -> bool:
    """Go on with a run in a process that is killed; whether it was before its end."""
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)
        try:
            finish(config, path)
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


@pytest.mark.slow
@pytest.mark.parametrize(("method", "workers"), EVERY if MOMENTS > 2 else FEW)
def test_killed_at_random_moments(tmp_path, small, method, workers):
    torch.set_num_threads(1)
    config = small(method=method, rounds=4, clients=4, active=2, workers=workers, filter="fft")
    begun = time.monotonic()
    reference = training.train(config, tmp_path / "reference")
    whole = time.monotonic() - begun
    draw = random.Random(f"{method}/{workers}")
    number = kills = 0
    while kills < MOMENTS and number < 4 * MOMENTS:
        path = tmp_path / f"run{number}"
        number += 1
        while kills < MOMENTS and killed_after(draw.uniform(0, whole), config, path):
            kills += 1
        run = finish(config, path)
        assert contents(run) == contents(reference)
        assert list(map(essence, run.records())) == list(map(essence, reference.records()))
    assert kills
