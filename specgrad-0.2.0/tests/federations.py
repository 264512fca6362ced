"""Small federations for tests: digits, ResNet-8, a handful of clients, one process."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import specgrad_data
import torch
from specgrad_fl import executor, plots, pool, prepare, storage, training
from specgrad_fl.config import Config
from specgrad_fl.engine import Engine
from specgrad_fl.partition import Partition
from specgrad_fl.records import essence
from specgrad_fl.runs import RunDirectory

# the fixtures, which a conftest.py takes all at once
__all__ = [
    "copied",
    "copies_as_workers",
    "make_engine",
    "no_pictures_of_runs",
    "play",
    "restore_threads",
    "small",
    "trained_once",
]

SMALL: dict[str, Any] = {
    "clients": 6,
    "active": 3,
    "rounds": 3,
    "batch_size": 64,
    "workers": 1,
    "eval_every": 1,
}


def tiny(num_classes: int, in_channels: int) -> torch.nn.Module:
    """A model whose rounds cost next to nothing."""
    layers = (torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(4, num_classes))
    return torch.nn.Sequential(*layers)


def experiment(config: Config, *seeds: int) -> Any:
    """An experiment of one cell, for ``reproduce``."""
    from specgrad_study.paper.experiment import Cell, Experiment

    def cells(preset: Any) -> list[Cell]:
        return [Cell("FedAvg", "digits", config, seeds)]

    return Experiment("one", "One run", "ours", cells, draws=(), ours=True)


def result_of(run: RunDirectory) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Final state of a run, to the bit: the same wherever its clients were.

    Left out are digests of files, which differ with the machine that holds a client's state and
    with the time that its records tell.
    """
    tensors, facts = storage.load_tensors(run.last_path)
    kept = {k: v for k, v in facts.items() if k not in ("metrics", "client_digests")}
    return kept, {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def files_of(run: RunDirectory) -> dict[str, bytes]:
    """Every file of a run that must come out equal.

    The checkpoint before the last is another one where an interrupt stored one more; what clients
    keep for it may be there, and nothing else.
    """
    names = ["config.toml", "partition.npz", "last.safetensors", "best.safetensors"]
    needed, spare = (
        {storage.client_path(run.clients_path, int(c), n) for c, n in rounds.items()}
        for rounds in (run.facts()["client_rounds"], run.previous_rounds())
    )
    assert set(run.clients_path.glob("*")) <= needed | spare
    files = [run.path / name for name in names] + sorted(needed)
    return {path.name: path.read_bytes() for path in files}


def rounds_of(run: RunDirectory) -> list[dict[str, Any]]:
    """The records of a run without what a clock, the operating system or a network measured."""
    measured = ("wire_bytes", "repeats")
    return [{k: v for k, v in essence(r).items() if k not in measured} for r in run.records()]


@pytest.fixture(autouse=True)
def restore_threads():
    """The engine sets the number of threads; give it back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_pictures_of_runs(request, monkeypatch):
    """They cost more than the rounds of so small a run; the mark ``pictures`` asks for them."""
    if request.node.get_closest_marker("pictures") is None:
        monkeypatch.setattr(plots, "curves", lambda path, runs: None)
        monkeypatch.setattr(Partition, "heatmap", lambda partition, path, labels, classes: None)


@pytest.fixture(autouse=True)
def copies_as_workers(request, monkeypatch):
    """Workers need no seconds to import torch; the mark ``interpreters`` asks for real ones."""
    if request.node.get_closest_marker("interpreters") is None:
        torch.set_num_threads(1)  # a copy has one thread alone
        names = {"DEVNULL": None, "TimeoutExpired": subprocess.TimeoutExpired}
        monkeypatch.setattr(pool, "subprocess", SimpleNamespace(Popen=pool.Forked, **names))
    else:
        monkeypatch.setattr(executor, "forkable", lambda threads: False)


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory) -> Callable[[Config], RunDirectory]:
    """The run of a configuration, played once in a test process and never changed."""
    folder = tmp_path_factory.mktemp("trained")

    def trained(config: Config) -> RunDirectory:
        # settings without influence on the result have none on its files but these
        kept = f"{config.digest}-{config.checkpoint_every}-{config.state_ram_mib}"
        run = RunDirectory(folder / kept)
        return run if run.finished else training.train(config, run.path)

    return trained


@pytest.fixture
def copied(trained_once) -> Callable[[Config, Path], RunDirectory]:
    """A copy of such a run, to do anything with."""

    def copy(config: Config, path: Path) -> RunDirectory:
        shutil.copytree(trained_once(config).path, path)
        return RunDirectory(path)

    return copy


@pytest.fixture
def small() -> Callable[..., Config]:
    """A configuration that trains in a second."""
    return lambda **settings: Config(**SMALL).replace(**settings)


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
