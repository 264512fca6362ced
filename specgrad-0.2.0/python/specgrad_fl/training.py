"""Start, resume and finalise runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specgrad_data import Dataset

from specgrad_fl import machine, methods
from specgrad_fl.building import inputs_of
from specgrad_fl.config import Config
from specgrad_fl.engine import Engine, RemoteExecutor
from specgrad_fl.errors import ConfigError, Diverged, RunError
from specgrad_fl.extensions import ENGINES, registered
from specgrad_fl.own_code import attributing_errors, check_allowed
from specgrad_fl.partition import Partition
from specgrad_fl.prepare import divide, load_data, prepare
from specgrad_fl.progress import Watcher, silent
from specgrad_fl.records import Record
from specgrad_fl.runs import FEDERATION_LOCK, LOCK, RunDirectory, check_same, extended
from specgrad_fl.samples import format_of
from specgrad_fl.summary import summarise

# the engine of this module; others are registered
LOCAL = "local"
Announce = Callable[[str], None]
Player = Callable[[RunDirectory, Dataset, Watcher], RunDirectory]


def train(
    config: Config,
    out: Path | str,
    watch: Watcher = silent,
    announce: Announce = lambda sentence: None,
) -> RunDirectory:
    """Begin a run in a new or empty directory and play all its rounds.

    watch: called with the record of each round and the configuration, as soon as it is stored
    announce: called with a sentence about what was understood, before the first round
    """
    run = RunDirectory(Path(out))
    play = _player(config)
    run.check_new()
    prepared = prepare(config, announce)
    with run.locked(_lock_of(config)):  # from the first file on, so that nobody resumes it
        dataset = begin(run, config, prepared)
        announce(f"run: {run.path}")
        announce(f"data: {dataset.describe()}; {run.config().clients} clients")
        try:
            return play(run, dataset, watch)
        except Diverged:
            raise
        except Exception:
            _discard_empty(run)
            raise


def _lock_of(config: Config) -> str:
    """Name the lock of a command: a federation's rounds are played, and locked, by its server."""
    return LOCK if config.engine == LOCAL else FEDERATION_LOCK


def _discard_empty(run: RunDirectory) -> None:
    """Remove a run that never finished a round, unless another process is at work on it."""
    # where nothing can be removed either, the reason is the first one
    with contextlib.suppress(RunError, OSError), run.locked():
        metrics = run.metrics_path
        if not (metrics.is_file() and metrics.stat().st_size):
            run.discard()


def _player(config: Config) -> Player:
    """Find the engine that plays the rounds, and check that it can."""
    if config.engine == LOCAL:
        return lambda run, dataset, watch: carry_on(run, run.config(), watch, dataset=dataset)
    entry = registered(ENGINES).get(config.engine)
    if entry is None:
        raise ConfigError(
            f"engine is {config.engine!r}, which no installed package registers; install specgrad "
            f"again, or choose {LOCAL}"
        )
    module = entry.load()
    module.check(config)
    play: Player = module.play
    return play


Prepared = tuple[Config, Dataset, Partition]


def begin(run: RunDirectory, config: Config, prepared: Prepared | None = None) -> Dataset:
    """Check the configuration and write what a run directory holds before its first round."""
    run.check_new()
    resolved, dataset, partition = prepared or prepare(config)
    with run.locked():
        run.check_new()  # another process may have begun it meanwhile
        run.create(resolved)
        run.complete(partition, _about(resolved, dataset))
    return dataset


def _about(config: Config, dataset: Dataset) -> Record:
    """Describe the model's inputs, for users of the weights elsewhere."""
    form = format_of(dataset, config.augment, config.channels_last)
    return {"inputs": vars(inputs_of(dataset)), "format": vars(form)}


def resume(
    out: Path | str,
    watch: Watcher = silent,
    changes: dict[str, Any] | None = None,
    allow: Iterable[str] = (),
) -> RunDirectory:
    """Continue a run where it was last stored; ``rounds`` among the changes makes it longer.

    allow: names of your own code, such as ``nets:Small``, that the stored configuration may run
    """
    run = RunDirectory(Path(out))
    stored = run.config()
    changes = dict(changes or {})
    if run.finished:
        run.verify()
    longer = changes.pop("rounds", stored.rounds)
    config = stored.replace(**check_same(stored, changes))
    if run.finished and longer == stored.rounds:
        return run
    check_allowed(config.own_code, allow, str(run.config_path))
    with run.locked(_lock_of(config)):
        with run.locked():
            stored = extended(run, run.config(), longer)
        return _go_on(run, stored, stored.replace(**changes), watch)


def _go_on(run: RunDirectory, stored: Config, config: Config, watch: Watcher) -> RunDirectory:
    """Play the rounds that are left of a stored run with settings that may differ from it."""
    kept = methods.method_class(config.method).client_vectors
    if kept and config.engine != stored.engine and run.load_rounds():
        raise RunError(
            f"engine is {stored.engine!r} in this run and {config.engine!r} was asked for, but "
            f"what {config.method} keeps for each client is with the clients of the first; resume "
            f"with --engine {stored.engine}"
        )
    play = _player(config)
    if config.engine != LOCAL:
        with run.locked():
            run.reconfigure(config)
        return play(run, load_data(config), watch)
    return carry_on(run, config, watch)


def carry_on(
    run: RunDirectory,
    config: Config,
    watch: Watcher,
    remote: RemoteExecutor | None = None,
    dataset: Dataset | None = None,
) -> RunDirectory:
    """Play the rounds that are left, with clients here or on other machines."""
    machine.check_amp(config)
    with run.locked():
        dataset = dataset or load_data(config)
        partition = partition_of(run, config, dataset)
        run.complete(partition, _about(config, dataset))
        with attributing_errors(config.own_code):
            engine = Engine(config, dataset, partition, run, remote)

        def watch_and_draw(record: Record, config: Config) -> None:
            watch(record, config)
            run.draw(partition, dataset)  # matplotlib takes longer than the first round of some

        try:
            with attributing_errors(config.own_code):
                engine.start()
            engine.play(watch_and_draw)
            extra = engine.final_scores()
        finally:
            engine.close()
        from specgrad_fl import plots  # matplotlib, for what was played to its end

        run.draw(partition, dataset)
        rounds, name = engine.records, run.path.name
        plots.curves(run.path / "curves.png", {name: rounds})
        if config.validation:
            plots.clients(run.path / "clients.png", {name: rounds[-1]["client_accuracies"]})
        run.save_summary(summarise(rounds, config) | extra)
    return run


def partition_of(run: RunDirectory, config: Config, dataset: Dataset) -> Partition:
    """The run's partition; where nothing depends on it yet, it is made again."""
    if not run.last_path.is_file() or not run.partition_path.is_file():
        divide(config, dataset).save(run.partition_path)
    partition = run.partition()
    partition.check(dataset)
    return partition
