"""The round loop: draw clients, train them, aggregate, evaluate, store."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from specgrad_fl import assembly, batches, checkpoint, data, executor, methods, models
from specgrad_fl.assembly import Blueprint
from specgrad_fl.board import Board, Layout
from specgrad_fl.client import Report, peak_mib
from specgrad_fl.config import Config
from specgrad_fl.data import Dataset
from specgrad_fl.errors import ConfigError, Diverged, RunError
from specgrad_fl.executor import Executor
from specgrad_fl.filters import filter_plan
from specgrad_fl.flat import FlatModel
from specgrad_fl.methods import Round, weighted_sum
from specgrad_fl.partition import Partition, make_partition
from specgrad_fl.runs import Record, RunDirectory, check_same
from specgrad_fl.seeding import derive, generator
from specgrad_fl.states import ClientRounds, ClientStates
from specgrad_fl.summary import summarise

Watcher = Callable[[Record, Config], None]
# an executor for clients elsewhere, which keep their own state
Elsewhere = Callable[[Blueprint, dict[str, Tensor], FlatModel, Layout, ClientRounds], Executor]
# a forward pass alone, of the cost of forward and backward
EVALUATION_COST = 0.3
EVALUATION_SHARE = 0.05


def draw_clients(config: Config, clients: int, round_number: int) -> list[int]:
    """The active clients of a round, in ascending order."""
    drawn = generator(config.seed, "sampling", round_number)
    if config.sampling == "uniform":
        return sorted(torch.randperm(clients, generator=drawn)[: config.active].tolist())
    while True:
        heads = torch.rand(clients, generator=drawn) < config.active / clients
        if heads.any():
            return heads.nonzero().flatten().tolist()


def resolve(config: Config, dataset: Dataset, partition: Partition) -> Config:
    """Put numbers in place of what is chosen from the data: clients and evaluation rounds."""
    clients = len(partition.clients)
    if config.active > clients:
        raise ConfigError(
            f"active is {config.active}, and there are {clients} clients; choose at most {clients}"
        )
    trained = config.active * config.epochs * sum(partition.sizes) / clients
    cost = EVALUATION_COST * len(dataset.test_y) / trained
    every = config.eval_every or min(config.rounds, max(1, math.ceil(cost / EVALUATION_SHARE)))
    tail = config.eval_tail
    if tail < 0:
        affordable = EVALUATION_SHARE * config.rounds / cost
        tail = 10 if affordable >= 10 else 1
    return config.replace(clients=clients, eval_every=every, eval_tail=tail)


def evaluates(config: Config, done: int) -> bool:
    """Whether the model is evaluated after ``done`` rounds."""
    return (
        done == config.rounds
        or done > config.rounds - config.eval_tail
        or done % config.eval_every == 0
    )


def load_data(config: Config) -> Dataset:
    """The configured data set."""
    root = Path(config.data_root) if config.data_root else None
    return data.load(config.dataset, root, **config.data_options)


def divide(config: Config, dataset: Dataset) -> Partition:
    """The configured partition."""
    return make_partition(
        dataset,
        kind=config.partition,
        clients=config.clients,
        alpha=config.alpha,
        mode=config.partition_mode,
        seed=derive(config.seed, "partition"),
        shards_per_client=config.shards_per_client,
        samples_per_client=config.samples_per_client,
    )


def inputs_of(dataset: Dataset) -> models.Inputs:
    """What the model must know about the data."""
    if dataset.is_text:
        return models.Inputs(dataset.num_classes, vocabulary=dataset.vocabulary)
    _, channels, height, _ = dataset.train_x.shape
    return models.Inputs(dataset.num_classes, channels, height)


def check_model(config: Config, dataset: Dataset) -> None:
    """Refuse a model that does not fit the data, or a filter that does not fit the model."""
    inputs = inputs_of(dataset)
    device = assembly.device_of(config)  # a filter may serve there and nowhere else
    model = models.build(config.model, inputs, config.model_options).eval().to(device)
    filter_plan(model, config)
    sample = dataset.test_x[:2].to(device)
    try:
        with torch.no_grad():
            logits = model(sample if dataset.is_text else sample.float() / 255)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"model {config.model!r} does not take the samples of {dataset.name}, of shape "
            f"{tuple(sample.shape[1:])}: {reason}"
        ) from error
    if tuple(logits.shape) != (len(sample), inputs.num_classes):
        raise ConfigError(
            f"model {config.model!r} returns shape {tuple(logits.shape)} for {len(sample)} samples "
            f"of {dataset.name}; expected {(len(sample), inputs.num_classes)}"
        )


@dataclass(frozen=True)
class Split:
    """Wall-clock seconds of a round's parts, and the clients' time summed over workers."""

    total: float
    train: float
    aggregate: float
    evaluate: float


class Engine:
    """One run in progress; ``elsewhere`` starts an executor whose clients keep their own state."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        partition: Partition,
        run: RunDirectory,
        elsewhere: Elsewhere | None = None,
    ):
        torch.set_num_threads(config.threads)
        self.config = config
        self.run = run
        kind, arrays = batches.stored(dataset, config.augment, config.channels_last)
        arrays["indices"] = torch.cat(partition.clients)
        arrays["sizes"] = torch.tensor(partition.sizes)
        blueprint = Blueprint(config, kind, inputs_of(dataset))
        self.flat = assembly.build_model(blueprint)
        federation = assembly.federation_of(blueprint, arrays, self.flat)
        self.method = methods.build(config.method, config.options, federation)
        self.sizes = federation.sizes
        rows = config.active if config.sampling == "uniform" else config.clients
        self._layout = Board.layout(
            self.flat.size,
            self.flat.buffer_size,
            rows,
            self.method.sent_vectors,
            () if elsewhere else self.method.client_vectors,
        )
        self.state = run.load_state(config, dataset.fingerprint)
        self.records = run.rewind(self.state.rounds)
        self.states: ClientRounds = (
            ClientRounds()
            if elsewhere
            else ClientStates(
                run.clients_path, self.method.client_vectors, self.flat.size, config.state_ram_mib
            )
        )
        self.states.restore(self.state.client_rounds)
        self.executor = (
            elsewhere(blueprint, arrays, self.flat, self._layout, self.states)
            if elsewhere
            else executor.start(blueprint, arrays, self.flat, self._layout)
        )
        self.board = self.executor.board
        self.server = self.method.server_state()
        self._whole = True  # weights, server and clients are those of one and the same round
        self._restore()

    def _restore(self) -> None:
        """Weights and server state: from the checkpoint, or as they are at the beginning."""
        stored = self.state.tensors
        if not stored:
            self.board.weights.copy_(self.flat.weights)
            self.board.buffers.copy_(self.flat.read_buffers())
            return
        expected = {f"model.{name}" for name in self.flat.segments} | {"buffers"}
        expected |= {f"server.{name}" for name in self.server}
        if set(stored) != expected:
            odd = sorted(set(stored) ^ expected)[0]
            raise RunError(
                f"{self.run.last_path} does not fit this model and method: {odd} is in one of "
                "them only"
            )
        weights = {name: stored[f"model.{name}"] for name in self.flat.segments}
        self.board.weights.copy_(self.flat.vector(weights))
        self.board.buffers.copy_(stored["buffers"])
        for name in self.server:
            self.server[name] = stored[f"server.{name}"]

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        named = {f"model.{k}": v for k, v in self.flat.named(self.board.weights).items()}
        named |= {f"server.{k}": v for k, v in self.server.items()}
        return named | {"buffers": self.board.buffers.clone()}

    def play(self, watch: Watcher) -> None:
        """All rounds that are left. An interrupt costs the round in progress, no other."""
        try:
            while self.state.rounds < self.config.rounds:
                watch(self.advance(), self.config)
        except KeyboardInterrupt:
            if self._whole and self.state.rounds > self.run.load_rounds():
                self.store()
            raise

    def advance(self) -> Record:
        """The next round, kept."""
        record = self.round(self.state.rounds)
        self.keep(record)
        return record

    def keep(self, record: Record) -> None:
        """Record the round just played, and store the state when that is due."""
        self.records.append(record)
        self.run.append(record)
        self.state.rounds = record["round"]
        self._whole = True
        if self.state.rounds % self.config.checkpoint_every == 0 or (
            self.state.rounds == self.config.rounds
        ):
            self.store()

    def store(self) -> None:
        """A checkpoint; what it replaces is removed afterwards."""
        self.state.client_rounds = self.states.flush()
        self.state.tensors = self.tensors()
        self.run.save_state(self.state, self.config)
        self.states.sweep()
        self.run.write_csv(self.records)

    def round(self, number: int) -> Record:
        """One communication round."""
        begun = time.perf_counter()
        config = self.config
        lr = config.lr * config.lr_decay**number
        clients = draw_clients(config, config.clients, number)
        for name in self.method.sent_vectors:
            self.board.sent[name].copy_(self.server[name])
        for row, client in enumerate(clients):
            for name, vector in self.states.get(client).items():
                self.board.states[name][row].copy_(vector)
        reports = self.executor.train(number, lr, clients)
        self._check_finite(number, reports)
        clients = [report.client for report in reports]
        trained = time.perf_counter()
        self._aggregate(number, clients, reports)
        aggregated = time.perf_counter()
        score = self.executor.score() if evaluates(config, number + 1) else None
        evaluated = time.perf_counter()
        if score is not None and score.accuracy > self.state.best_accuracy:
            self.state.best_accuracy, self.state.best_round = score.accuracy, number + 1
            self._store_best()
        split = Split(
            total=time.perf_counter() - begun,
            train=trained - begun,
            aggregate=aggregated - trained,
            evaluate=evaluated - aggregated,
        )
        return self._record(number, lr, clients, reports, score, split)

    def _check_finite(self, number: int, reports: list[Report]) -> None:
        for report in reports:
            if not report.finite:
                raise Diverged(
                    f"round {number + 1}: the loss of client {report.client} is {report.loss} or "
                    f"its weights are no longer finite; the run stops, and {self._kept()}. Choose "
                    "a smaller lr or clip"
                )

    def _kept(self) -> str:
        """What a run that stops can go back to."""
        rounds = self.run.load_rounds()
        return f"the checkpoint of round {rounds} is kept" if rounds else "there is no checkpoint"

    def _aggregate(self, number: int, clients: list[int], reports: list[Report]) -> None:
        self._whole = False
        board = self.board
        active = torch.tensor(clients)
        sizes = self.sizes[active].double()
        results = board.results[: len(clients)]
        shares = sizes / sizes.sum()
        finished = Round(
            number=number,
            clients=active,
            weights=shares,
            start=board.weights,
            results=results,
            lr_sums=torch.tensor([r.lr_sum for r in reports], dtype=torch.float64),
        )
        weights = self.method.aggregate(finished, self.server)
        if not torch.isfinite(weights.sum()):
            raise Diverged(
                f"round {number + 1}: {self.config.method} made weights that are not finite; the "
                f"run stops, and {self._kept()}. Choose a smaller lr or milder options"
            )
        if self.config.eval_target == "server":
            board.scored.copy_(weights)
        else:
            board.scored.copy_(weighted_sum(results, self.method.shares(finished)))
        board.weights.copy_(weights)
        if len(board.buffers):
            board.buffers.copy_(weighted_sum(board.buffer_results[: len(clients)], shares))
        if self.method.client_vectors:
            for row, client in enumerate(clients):
                kept = {name: rows[row] for name, rows in board.states.items()}
                self.states.put(client, number + 1, kept)

    def _store_best(self) -> None:
        self.flat.weights.copy_(self.board.scored)
        self.flat.write_buffers(self.board.buffers)
        facts = {"round": self.state.best_round, "accuracy": self.state.best_accuracy}
        whole = {k: v.detach().clone() for k, v in self.flat.model.state_dict().items()}
        checkpoint.save(self.run.best_path, whole, facts)

    def _record(
        self,
        number: int,
        lr: float,
        clients: list[int],
        reports: list[Report],
        score: executor.Score | None,
        split: Split,
    ) -> Record:
        vector = 4 * self.flat.size * len(clients)
        payload = 4 * self.flat.buffer_size * len(clients)
        busy = sum(report.seconds for report in reports)
        filtering = sum(report.filter_seconds for report in reports)
        record: Record = {
            "round": number + 1,
            "lr": lr,
            "train_loss": sum(report.loss for report in reports) / len(reports),
            "clients": clients,
            "bytes_down": self.method.down * vector + payload,
            "bytes_up": self.method.up * vector + payload,
        }
        if score is not None:
            record |= {"test_accuracy": score.accuracy, "test_loss": score.loss}
        record |= self.executor.remarks()
        return record | {
            "time": time.time(),
            "seconds": {
                "round": split.total,
                "train": split.train,
                "aggregate": split.aggregate,
                "evaluate": split.evaluate,
                "client_compute": busy - filtering,
                "client_filter": filtering,
            },
            "filter_share": filtering / busy,
            "memory_mib": {
                "parent": peak_mib(),
                "workers": sum(self.executor.memory()),
            },
        }


def silent(record: Record, config: Config) -> None:
    """A watcher that says nothing."""


def prepare(config: Config) -> tuple[Config, Dataset, Partition]:
    """Refuse what cannot be run; else the resolved configuration, its data and its partition."""
    assembly.device_of(config)
    assembly.check_amp(config)
    methods.resolve_options(config.method, config.options)
    dataset = load_data(config)
    partition = divide(config, dataset)
    resolved = resolve(config, dataset, partition)
    check_model(config, dataset)
    return resolved, dataset, partition


def train(config: Config, out: Path | str, watch: Watcher = silent) -> RunDirectory:
    """Begin a run in a new directory and play all its rounds."""
    run = RunDirectory(Path(out))
    if config.engine == "flower":
        launch = _flower_launch()
        launch.check(config)
        return launch.play(run, begin(run, config), watch)
    dataset = begin(run, config)
    with run.locked():
        return _play(run, run.config(), dataset, watch)


def begin(run: RunDirectory, config: Config) -> Dataset:
    """Check the configuration and write what a run directory holds before its first round."""
    _refuse_existing(run)
    resolved, dataset, partition = prepare(config)
    with run.locked():
        _refuse_existing(run)  # another process may have begun it meanwhile
        run.create(resolved)
        run.save_partition(partition, dataset.train_y, dataset.num_classes)
    return dataset


def _refuse_existing(run: RunDirectory) -> None:
    if run.exists:
        raise RunError(
            f"{run.path} already holds a run; continue it with `specgrad-fl resume {run.path}` "
            "or choose another --out"
        )


def resume(
    out: Path | str, watch: Watcher = silent, changes: dict[str, Any] | None = None
) -> RunDirectory:
    """Continue a run where it was last stored."""
    run = RunDirectory(Path(out))
    stored = run.config()
    config = stored.replace(**check_same(stored, changes or {}))
    if run.finished:
        return run
    _check_states_follow(run, stored, config)
    if config.engine == "flower":
        launch = _flower_launch()
        launch.check(config)
        with run.locked():
            run.reconfigure(config)
        return launch.play(run, load_data(config), watch)
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
    run: RunDirectory, config: Config, watch: Watcher, elsewhere: Elsewhere | None = None
) -> RunDirectory:
    """Play the rounds that are left, here or elsewhere."""
    assembly.check_amp(config)
    with run.locked():
        return _play(run, config, load_data(config), watch, elsewhere)


def _flower_launch() -> ModuleType:
    """Imported when it is asked for: most installations are without Flower."""
    from specgrad_fl.flower import launch

    return launch


def _play(
    run: RunDirectory,
    config: Config,
    dataset: Dataset,
    watch: Watcher,
    elsewhere: Elsewhere | None = None,
) -> RunDirectory:
    partition = partition_of(run, config, dataset)
    engine = Engine(config, dataset, partition, run, elsewhere)
    try:
        engine.play(watch)
    finally:
        engine.executor.close()
    from specgrad_fl import plots  # matplotlib takes a second to import

    plots.curves(run.path / "curves.png", {run.path.name: engine.records})
    run.write_summary(summarise(engine.records, config))
    return run


def partition_of(run: RunDirectory, config: Config, dataset: Dataset) -> Partition:
    """The run's partition, made again where the run was killed before it was written."""
    if not run.partition_path.is_file():
        run.save_partition(divide(config, dataset), dataset.train_y, dataset.num_classes)
    partition = Partition.load(run.partition_path)
    partition.check(dataset)
    return partition
