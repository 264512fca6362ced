"""Runs from their beginning to their end: begun, continued, summed up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from specgrad_fl import assembly, methods
from specgrad_fl.config import Config
from specgrad_fl.data import Dataset
from specgrad_fl.engine import Engine, RemoteExecutor, Watcher, silent
from specgrad_fl.errors import Diverged, RunError
from specgrad_fl.imports import imported
from specgrad_fl.partition import Partition
from specgrad_fl.prepare import divide, load_data, prepare
from specgrad_fl.runs import RunDirectory, check_same
from specgrad_fl.summary import summarise

# engines other than this process, as module:function; each takes a run, its data and a watcher
OTHER_ENGINES = {"flower": "specgrad_fl.flower.launch:play"}
CHECKS = {"flower": "specgrad_fl.flower.launch:check"}
Player = Callable[[RunDirectory, Dataset, Watcher], RunDirectory]


def train(config: Config, out: Path | str, watch: Watcher = silent) -> RunDirectory:
    """Begin a run in a new or empty directory and play all its rounds."""
    run = RunDirectory(Path(out))
    play = _player(config)
    dataset = begin(run, config)
    try:
        return play(run, dataset, watch)
    except Diverged:
        raise
    except Exception:
        if not run.load_rounds():
            run.discard()
        raise


def _player(config: Config) -> Player:
    """What plays the rounds of a run, once it is known to be able to."""
    if config.engine not in OTHER_ENGINES:
        return lambda run, dataset, watch: carry_on(run, run.config(), watch, dataset=dataset)
    imported("engine", CHECKS[config.engine])(config)
    return imported("engine", OTHER_ENGINES[config.engine])


def begin(run: RunDirectory, config: Config) -> Dataset:
    """Check the configuration and write what a run directory holds before its first round."""
    run.check_new()
    resolved, dataset, partition = prepare(config)
    with run.locked():
        run.check_new()  # another process may have begun it meanwhile
        run.create(resolved)
        run.save_partition(partition, dataset.train_y, dataset.num_classes)
    return dataset


def resume(
    out: Path | str, watch: Watcher = silent, changes: dict[str, Any] | None = None
) -> RunDirectory:
    """Continue a run where it was last stored."""
    run = RunDirectory(Path(out))
    stored = run.config()
    config = stored.replace(**check_same(stored, changes or {}))
    if run.finished:
        run.verify(summarise)
        return run
    _check_states_follow(run, stored, config)
    play = _player(config)
    if config.engine in OTHER_ENGINES:
        with run.locked():
            run.reconfigure(config)
        return play(run, load_data(config), watch)
    return carry_on(run, config, watch)


def _check_states_follow(run: RunDirectory, stored: Config, config: Config) -> None:
    """What clients keep between rounds stays where they were trained."""
    if config.engine == stored.engine or not methods.method_class(config.method).client_vectors:
        return
    if run.load_rounds():
        raise RunError(
            f"engine is {stored.engine!r} in this run and {config.engine!r} was asked for, but "
            f"what {config.method} keeps for each client is with the clients of the first; resume "
            f"with --engine {stored.engine}"
        )


def carry_on(
    run: RunDirectory,
    config: Config,
    watch: Watcher,
    remote: RemoteExecutor | None = None,
    dataset: Dataset | None = None,
) -> RunDirectory:
    """Play the rounds that are left, with clients here or on other machines."""
    assembly.check_amp(config)
    with run.locked():
        dataset = dataset or load_data(config)
        partition = partition_of(run, config, dataset)
        engine = Engine(config, dataset, partition, run, remote)
        try:
            engine.start().play(watch)
            extra = engine.final_scores()
        finally:
            engine.close()
        run.complete(partition, dataset.train_y, dataset.num_classes)
        from specgrad_fl import plots  # matplotlib takes a second to import

        plots.curves(run.path / "curves.png", {run.path.name: list(engine.records)})
        run.write_summary(summarise(list(engine.records), config) | extra)
        return run


def partition_of(run: RunDirectory, config: Config, dataset: Dataset) -> Partition:
    """The run's partition; where nothing depends on it yet, it is made again."""
    expected = run.facts().get("partition")
    if not run.last_path.is_file() or not run.partition_path.is_file():
        run.save_partition(divide(config, dataset), dataset.train_y, dataset.num_classes)
    partition = Partition.load(run.partition_path)
    partition.check(dataset)
    if expected and partition.digest != expected:
        raise run.changed(run.partition_path)
    return partition
