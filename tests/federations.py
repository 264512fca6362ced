"""Small federations for tests: digits, ResNet-8, a handful of clients, one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import specgrad_data
import torch
from specgrad_fl import prepare, storage
from specgrad_fl.config import Config
from specgrad_fl.engine import Engine
from specgrad_fl.runs import RunDirectory

SMALL: dict[str, Any] = {
    "clients": 6,
    "active": 3,
    "rounds": 3,
    "batch_size": 64,
    "workers": 1,
    "eval_every": 1,
}


def result_of(run: RunDirectory) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What a run ended with, to the bit: the same wherever its clients were.

    Left out are digests of files, which differ with the machine that holds a client's state and
    with the time that its records tell.
    """
    tensors, facts = storage.load_tensors(run.last_path)
    kept = {k: v for k, v in facts.items() if k not in ("metrics", "client_digests")}
    return kept, {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


@pytest.fixture(autouse=True)
def restore_threads():
    """The engine sets the number of threads; give it back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small() -> Callable[..., Config]:
    """A configuration that trains in a second."""
    return lambda **settings: Config(**{**SMALL, **settings})


@pytest.fixture
def make_engine(tmp_path: Path, small) -> Callable[..., Engine]:
    """An engine before its first round."""
    made: list[Engine] = []

    def make(**settings: Any) -> Engine:
        config = small(**settings)
        dataset = specgrad_data.load("digits")
        partition = prepare.divide(config, dataset)
        run = RunDirectory(tmp_path / f"engine{len(made)}")
        run.path.mkdir()
        resolved = prepare.resolve(config, dataset, partition)
        made.append(Engine(resolved, dataset, partition, run).start())
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def play(make_engine) -> Callable[..., Engine]:
    """An engine after all its rounds, in memory alone."""

    def play(**settings: Any) -> Engine:
        made = make_engine(**settings)
        for number in range(made.config.rounds):
            made.records.append(made.round(number))
        return made

    return play
