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
from federations import files_of, rounds_of
from representatives import only
from specgrad_fl import training
from specgrad_fl.errors import RunError
from specgrad_fl.methods import METHODS
from specgrad_fl.runs import RunDirectory

MOMENTS = int(os.environ.get("SPECGRAD_KILLS", "2"))
EVERY = [(method, workers) for method in METHODS for workers in (1, 2)]
FEW = only([("feddyn", 2)], [("fedavg", 2), ("scaffold", 1), ("feddyn", 2)])


def finish(config, path):
    run = RunDirectory(path)
    while path.exists():
        try:
            with run.locked():
                break
        except RunError:  # a worker that was just being started has not let go of the lock yet
            time.sleep(0.01)
    return training.resume(path) if run.exists else training.train(config, path)


def killed_after(seconds: float, config, path) -> float | None:
    """Go on with a run in a process that is killed; how long it took if it ended before that."""
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        for stream in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        try:
            finish(config, path)
        finally:
            os._exit(0)
    while time.monotonic() - begun < seconds:
        if os.waitpid(child, os.WNOHANG)[0]:
            return time.monotonic() - begun
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


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
    while kills < MOMENTS:
        path = tmp_path / f"run{number}"
        number += 1
        while kills < MOMENTS:
            new = not path.exists()
            ended = killed_after(draw.uniform(0, whole), config, path)
            if ended is not None:
                # the reference was slower: nothing was imported yet, or the machine was busy
                whole = min(whole, ended) if new else whole
                break
            kills += 1
        run = finish(config, path)
        assert files_of(run) == files_of(reference)
        assert rounds_of(run) == rounds_of(reference)
