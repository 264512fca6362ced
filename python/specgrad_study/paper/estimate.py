"""How long runs will take, from a few timed steps of each kind of run."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specgrad_data import Dataset
from specgrad_fl import engine, prepare
from specgrad_fl.config import Config
from specgrad_fl.engine import Engine
from specgrad_fl.errors import RunError
from specgrad_fl.runs import RunDirectory

from specgrad_study.fleet import Job

STEPS = 4
# settings without influence on the cost of a step
FREE = {
    "alpha": 0.1, "seed": 0, "ratio": 0.05, "rounds": 1, "epochs": 1, "options": {}, "lr": 0.1,
    "filter_order": "", "filter_select": "auto", "eval_every": 1, "eval_tail": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Pace:
    """Seconds of a local step, of scoring the test set once, and what a round consists of."""

    step: float
    score: float
    samples: float


def kind_of(config: Config) -> str:
    """Runs of one kind cost the same for each step."""
    return config.replace(**FREE).digest


def measure(config: Config, dataset: Dataset) -> Pace:
    """Time one client for a few steps, after as many to warm up."""
    whole = prepare.divide(config, dataset)
    few = STEPS * config.batch_size
    cut = replace(whole, clients=[held[:few] for held in whole.clients])
    plain = config.replace(workers=1, epochs=1)
    resolved = prepare.resolve(plain, dataset, cut)
    with tempfile.TemporaryDirectory() as folder:
        trial = Engine(resolved, dataset, cut, RunDirectory(Path(folder))).start()
        try:
            trial.executor.train(0, config.lr, [0])
            step = _seconds(lambda: trial.executor.train(0, config.lr, [0]))
            score = _seconds(trial.executor.score)
        finally:
            trial.close()
    steps = math.ceil(len(cut.clients[0]) / config.batch_size)
    return Pace(step / steps, score, sum(whole.sizes) / len(whole.clients))


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def seconds(config: Config, pace: Pace, rounds_done: int) -> float:
    """The rest of a run in one process."""
    each = config.active * config.epochs * math.ceil(pace.samples / config.batch_size)
    rest = range(rounds_done + 1, config.rounds + 1)
    scored = sum(engine.evaluates(config, done) for done in rest)
    return len(rest) * each * pace.step + scored * pace.score


@dataclass(frozen=True)
class Estimate:
    """Seconds of all runs one after the other, and the runs that cannot begin."""

    total: float
    refused: tuple[tuple[Job, str], ...]


def estimate(jobs: Sequence[Job]) -> Estimate:
    """Time each kind of run once."""
    paces: dict[str, Pace | str] = {}
    total, refused = 0.0, []
    for job in jobs:
        kind = kind_of(job.config)
        if kind not in paces:
            try:
                paces[kind] = measure(job.config, prepare.load_data(job.config))
            except RunError as error:
                paces[kind] = str(error)
        pace = paces[kind]
        if isinstance(pace, str):
            refused.append((job, pace))
        else:
            config = job.config.replace(
                eval_every=job.config.eval_every or 1, eval_tail=max(job.config.eval_tail, 0)
            )
            total += seconds(config, pace, len(RunDirectory(job.path).records()))
    return Estimate(total, tuple(refused))
