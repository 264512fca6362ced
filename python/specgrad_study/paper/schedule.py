"""Which runs the cells of experiments need, which machine plays them, and how long they take.

Times are estimated from a few timed steps of each kind of run.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from timeit import timeit

from specgrad_data import Dataset
from specgrad_fl import engine, prepare
from specgrad_fl.config import Config
from specgrad_fl.engine import Engine
from specgrad_fl.errors import RunError
from specgrad_fl.partition import Partition
from specgrad_fl.runs import RunDirectory, run_name

from specgrad_study.fleet import Job
from specgrad_study.paper.experiment import Cell

STEPS = 4
# settings without influence on the cost of a step: runs that differ by them are of one kind
FREE = {
    "alpha": 0.1, "seed": 0, "ratio": 0.05, "rounds": 1, "epochs": 1, "options": {}, "lr": 0.1,
    "filter_order": "", "filter_select": "auto", "eval_every": 1, "eval_tail": 0,
}  # fmt: skip


def parse_shard(text: str) -> tuple[int, int]:
    """``i/n``: the i-th of n parts, counted from 1.

    >>> parse_shard("2/3")
    (2, 3)
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise RunError(f"shard is {text!r}; write i/n with i from 1 to n, such as 1/4")
    return int(match[1]), int(match[2])


def jobs_of(
    cells: Sequence[Cell], folder: Path, data_root: str = "", workers: int = 0
) -> list[Job]:
    """The runs of cells, each once; the first seed of every cell comes before the second."""
    configs = [
        (place, config.replace(data_root=data_root, workers=workers or config.workers))
        for cell in cells
        for place, config in enumerate(cell.configs())
    ]
    ordered = sorted(configs, key=lambda entry: entry[0])
    return list({run_name(config): Job.of(config, folder) for _, config in ordered}.values())


def shard(jobs: Sequence[Job], part: int, parts: int) -> list[Job]:
    """Every n-th job, so that long and short ones spread evenly."""
    return list(jobs[part - 1 :: parts])


@dataclass(frozen=True)
class Pace:
    """Seconds of a local step, of scoring the test set once, and what a round consists of."""

    step: float
    score: float
    samples: float


@contextmanager
def trial(config: Config, dataset: Dataset, partition: Partition) -> Iterator[Engine]:
    """The engine of a run that nobody keeps."""
    with tempfile.TemporaryDirectory() as folder:
        resolved = prepare.resolve(config, dataset, partition)
        tried = Engine(resolved, dataset, partition, RunDirectory(Path(folder))).start()
        try:
            yield tried
        finally:
            tried.close()


def _pace(config: Config, dataset: Dataset) -> Pace:
    """Time one client for a few steps, after as many to warm up."""
    whole = prepare.divide(config, dataset)
    few = STEPS * config.batch_size
    cut = replace(whole, clients=[held[:few] for held in whole.clients])
    with trial(config.replace(workers=1, epochs=1), dataset, cut) as tried:
        tried.executor.train(0, config.lr, [0])
        step = timeit(lambda: tried.executor.train(0, config.lr, [0]), number=1)
        score = timeit(tried.executor.score, number=1)
    steps = math.ceil(len(cut.clients[0]) / config.batch_size)
    return Pace(step / steps, score, sum(whole.sizes) / len(whole.clients))


def _rest(config: Config, pace: Pace, rounds_done: int) -> float:
    """Seconds that the rest of a run takes in one process."""
    config = config.replace(eval_every=config.eval_every or 1, eval_tail=max(config.eval_tail, 0))
    each = config.active * config.epochs * math.ceil(pace.samples / config.batch_size)
    rest = range(rounds_done + 1, config.rounds + 1)
    scored = sum(engine.evaluates(config, done) for done in rest)
    return len(rest) * each * pace.step + scored * pace.score


def estimate(jobs: Sequence[Job]) -> tuple[float, dict[str, str]]:
    """Seconds of all runs one after the other, and by name why some cannot begin."""
    paces: dict[str, Pace | str] = {}
    total, refused = 0.0, {}
    for job in jobs:
        kind = job.config.replace(**FREE).digest
        if kind not in paces:
            try:
                paces[kind] = _pace(job.config, prepare.load_data(job.config))
            except RunError as error:
                paces[kind] = str(error)
        pace = paces[kind]
        if isinstance(pace, str):
            refused[job.path.name] = pace
        else:
            total += _rest(job.config, pace, len(RunDirectory(job.path).records()))
    return total, refused
