"""The round loop: draw clients, train them, aggregate, evaluate, store."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from specgrad_data import Dataset
from torch import Tensor

from specgrad_fl import building, executor, methods, samples, storage
from specgrad_fl.building import Blueprint, inputs_of
from specgrad_fl.client import ClientResult
from specgrad_fl.config import Config
from specgrad_fl.errors import Diverged, RunError
from specgrad_fl.executor import Executor
from specgrad_fl.machine import peak_mib
from specgrad_fl.methods import Round
from specgrad_fl.own_code import attributing_errors
from specgrad_fl.partition import Partition
from specgrad_fl.progress import Watcher
from specgrad_fl.records import Record, Records
from specgrad_fl.results import client_statistics
from specgrad_fl.runs import RunDirectory, RunState
from specgrad_fl.seeding import generator
from specgrad_fl.storage import ClientRounds, ClientStates
from specgrad_fl.vectors import FlatModel, SharedVectors, TensorShapes, to_device

# an executor for clients on other machines, which keep their own state
RemoteExecutor = Callable[
    [Blueprint, dict[str, Tensor], FlatModel, TensorShapes, ClientRounds], Executor
]
CHOSEN_ON = {
    "test": "the test set, so its accuracy is too good; set validation to avoid that",
    "validation": "samples of the clients that were held out",
}


def draw_clients(config: Config, clients: int, round_number: int) -> list[int]:
    """The active clients of a round whose work is not lost, in ascending order."""
    drawn = generator(config.seed, "sampling", round_number)
    if config.sampling == "uniform":
        active = sorted(torch.randperm(clients, generator=drawn)[: config.active].tolist())
    else:
        active = _bernoulli_nonempty(clients, config.active / clients, drawn)
    if not config.dropout:
        return active
    lost = generator(config.seed, "dropout", round_number)
    return [active[place] for place in _bernoulli_nonempty(len(active), 1 - config.dropout, lost)]


def _bernoulli_nonempty(count: int, probability: float, drawn: torch.Generator) -> list[int]:
    """Bernoulli sample of ``range(count)``, redrawn until non-empty."""
    while True:
        chosen = torch.rand(count, generator=drawn) < probability
        if chosen.any():
            return chosen.nonzero().flatten().tolist()


# weights that fit a cache in float64
LARGE = 2**17
# lengths of vectors whose squares float32 can hold
SQUARED_SAFELY = (1e-15, 1e15)
# of fewer updates the median is one of two, and either could be the wrong one
FEWEST_GUARDED = 3


def _outlying(
    rows: Tensor, start: Tensor, factor: float, scale: float = 0.0
) -> tuple[float, list[float]]:
    """Measure updates: the length from which they are left out, and their lengths.

    In float64 where squares of float32 may be infinite or zero; a median of zero sets no limit. The
    length of an update with NaN is NaN, below no limit, and no part of the median.
    """
    lengths = _lengths(rows, start, rows.dtype)
    if not bool(((lengths > SQUARED_SAFELY[0]) & (lengths < SQUARED_SAFELY[1])).all()):
        lengths = _lengths(rows, start, torch.float64)
    middle = float(lengths.nanmedian()) + scale
    return factor * middle if middle else math.inf, lengths.tolist()


def _lengths(rows: Tensor, start: Tensor, dtype: torch.dtype) -> Tensor:
    """Norms of ``rows - start``, in blocks: one row at a time costs calls, all at once memory."""
    blocks = rows.split(max(1, LARGE // max(1, len(start))))
    space = torch.empty_like(blocks[0])
    differences = (torch.sub(block, start, out=space[: len(block)]) for block in blocks)
    return torch.cat([torch.linalg.vector_norm(d, dim=1, dtype=dtype) for d in differences])


def evaluates(config: Config, done: int) -> bool:
    """Return true if the model is evaluated after ``done`` rounds."""
    return done > config.rounds - max(config.eval_tail, 1) or done % config.eval_every == 0


class Engine:
    """One run in progress; ``remote`` makes an executor whose clients keep their own state.

    Nothing is started or written before :meth:`start`.
    """

    executor: Executor
    board: SharedVectors
    states: ClientRounds
    state: RunState

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        partition: Partition,
        run: RunDirectory,
        remote: RemoteExecutor | None = None,
    ):
        torch.set_num_threads(config.threads)
        self.config = config
        self.run = run
        self.records = Records(run.metrics_path)
        self._remote = remote
        self._fingerprint, self._partition = dataset.fingerprint, partition.digest
        form, self._arrays = samples.stored(dataset, config.augment, config.channels_last)
        self._arrays |= partition.arrays()
        self._blueprint = Blueprint(config, form, inputs_of(dataset))
        self.flat = building.build_model(self._blueprint)
        federation = building.federation_of(self._blueprint, self._arrays, self.flat)
        self.method = methods.build(config.method, config.options, federation)
        self.server = self.method.server_state()
        self.sizes = federation.sizes
        self._whole = True  # weights, server and clients are those of one and the same round

    def start(self) -> Engine:
        """Go to the state that was last stored, and start what trains the clients."""
        config, method = self.config, self.method
        self.state = self.run.load_state(config, self._fingerprint)
        self.state.partition = self._partition
        self.records = self.run.rewind(self.state)
        kept = () if self._remote else method.client_vectors
        rows = config.active if config.sampling == "uniform" else config.clients
        layout = SharedVectors.layout(self.flat, rows, method.sent_vectors, kept)
        parts = (self._blueprint, self._arrays, self.flat, layout)
        if self._remote:
            self.states = ClientRounds()
            self.executor = self._remote(*parts, self.states)
        else:
            self.states = ClientStates(
                self.run.clients_path, kept, self.flat.size, config.state_ram_mib
            )
            self.executor = executor.choose(*parts)
        state = self.state
        self.states.restore(state.client_rounds, state.client_digests, self.run.previous_rounds())
        self.executor.start()
        self.board = self.executor.board
        self._restore()
        if not self.state.tensors:
            self.store()
        return self

    def close(self) -> None:
        """Free processes and memory."""
        if hasattr(self, "executor"):
            self.executor.close()

    def _restore(self) -> None:
        """Weights and server state: from the checkpoint, or as they are at the beginning."""
        stored = self.state.tensors
        if not stored:
            self.board.weights.copy_(self.flat.weights)
            self.board.buffers.copy_(self.flat.read_buffers())
            return
        expected = {f"model.{name}" for name in self.flat.segments} | {"buffers"}
        expected |= {f"server.{name}" for name in self.server}
        for odd in sorted(set(stored) ^ expected):
            raise RunError(
                f"{self.run.last_path} does not fit this model and method: {odd} is in one of "
                "them only"
            )
        self.board.weights.copy_(self.flat.vector(stored, "model."))
        self.board.buffers.copy_(stored["buffers"])
        for name in self.server:
            self.server[name] = stored[f"server.{name}"]

    def play(self, watch: Watcher) -> None:
        """All rounds that are left. An interrupt costs the round in progress, no other."""
        try:
            while self.state.rounds < self.config.rounds:
                with attributing_errors(self.config.own_code):
                    record = self.round(self.state.rounds)
                    self.keep(record)
                watch(record, self.config)
        except KeyboardInterrupt:
            if self._whole and self.state.rounds > self.run.load_rounds():
                self.store()
            raise

    def keep(self, record: Record) -> None:
        """Record the round just played, and store the state when that is due."""
        self.records.append(record)
        self.state.rounds = record["round"]
        self._whole = True
        last = self.state.rounds == self.config.rounds
        if last or self.state.rounds % self.config.checkpoint_every == 0:
            self.store()

    def store(self) -> None:
        """A checkpoint; what it replaces is removed afterwards."""
        self.state.client_rounds = self.states.flush()
        self.state.client_digests = dict(self.states.digests)
        self.state.metrics = self.records.digest
        tensors = {f"model.{k}": v for k, v in self.flat.named(self.board.weights).items()}
        tensors |= {f"server.{k}": v for k, v in self.server.items()}
        self.state.tensors = tensors | {"buffers": self.board.buffers.clone()}
        self.run.save_state(self.state, self.config)
        self.states.sweep()
        self.records.write_csv()

    def round(self, number: int) -> Record:
        """One communication round."""
        begun = time.perf_counter()
        config = self.config
        lr = config.learning_rate(number)
        clients = draw_clients(config, config.clients, number)
        for name in self.method.sent_vectors:
            self.board.sent[name].copy_(self.server[name])
        for row, client in enumerate(clients if self.board.states else ()):
            for name, vector in self.states.get(client).items():
                self.board.states[name][row].copy_(vector)
        reports = self.executor.train(number, lr, clients)
        trained = time.perf_counter()
        answered = len(reports)
        reports, far = self._guarded(reports)
        if not reports:
            raise Diverged(
                f"round {number + 1}: loss or weights of all {len(clients)} clients are no longer "
                f"finite; the run stops, and {self._kept()}. Choose a smaller lr or clip"
            )
        self._aggregate(number, reports)
        aggregated = time.perf_counter()
        scores = self._scores(number + 1)
        evaluated = time.perf_counter()
        self._keep_best(number + 1, scores)
        seconds = {
            "round": time.perf_counter() - begun,
            "train": trained - begun,
            "aggregate": aggregated - trained,
            "evaluate": evaluated - aggregated,
        }
        remarks = self._remarks(far)
        return self._record(number, lr, reports, answered, scores, remarks, seconds)

    def _kept(self) -> str:
        """Name the checkpoints that a run that stops can go back to."""
        rounds, before = self.run.load_rounds(), self.run.previous()
        if not rounds:
            return "there is no checkpoint"
        spare = f", and that of round {before['rounds']} as {self.run.previous_path.name}"
        return f"the checkpoint of round {rounds} is kept{spare if before else ''}"

    def _guarded(self, reports: list[ClientResult]) -> tuple[list[ClientResult], dict[int, str]]:
        """Leave out updates that are not finite, or far longer than the round's median.

        Returns the remaining reports, whose rows move up, and the reason for each client that is
        left out.
        """
        board, count, factor = self.board, len(reports), self.config.guard
        far = {
            row: "its loss or weights are no longer finite; choose a smaller lr"
            for row, each in enumerate(reports)
            if not each.finite
        }
        if factor and count - len(far) >= FEWEST_GUARDED:
            far = self._far(count, factor) | far
        kept = [row for row in range(count) if row not in far]
        for place, row in enumerate(kept):
            for stack in (board.results, board.buffer_results, *board.states.values()):
                if place != row:
                    stack[place].copy_(stack[row])
        return [reports[row] for row in kept], {reports[row].client: far[row] for row in far}

    def _far(self, count: int, factor: float) -> dict[int, str]:
        """Find the rows whose update or change of buffers is beyond the guard, and say why."""
        board = self.board
        limit, lengths = _outlying(board.results[:count], board.weights, factor)
        far = {
            row: f"its update is {length / limit * factor:.3g} times as long as the round's median,"
            f" and guard leaves out more than {factor:g}"
            for row, length in enumerate(lengths)
            if not length <= limit
        }
        if len(board.buffers):
            scale = float(torch.linalg.vector_norm(board.buffers))
            limit, lengths = _outlying(board.buffer_results[:count], board.buffers, factor, scale)
            why = f"the change of its buffers is beyond {limit:.3g}, and guard is {factor:g}"
            far |= {row: why for row, length in enumerate(lengths) if not length <= limit}
        return far

    def _remarks(self, far: dict[int, str]) -> Record:
        """Add the clients that the guard left out to what the executor has to say."""
        said = self.executor.remarks()
        if not far:
            return said
        reasons = [f"client {client}: {why}" for client, why in far.items()]
        return {
            **said,
            "left_out": [*said.get("left_out", ()), *far],
            "reasons": [*said.get("reasons", ()), *reasons],
        }

    def _aggregate(self, number: int, reports: list[ClientResult]) -> None:
        self._whole = False
        board = self.board
        clients = [report.client for report in reports]
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
            aggregation=self.config.aggregation,
        )
        weights = self.method.aggregate(finished, self.server)
        self._check_aggregated(weights)
        if not torch.isfinite(weights.sum()):
            raise Diverged(
                f"round {number + 1}: {self.config.method} made weights that are not finite; the "
                f"run stops, and {self._kept()}. Choose a smaller lr or milder options"
            )
        if self.config.eval_target == "server":
            board.scored.copy_(weights)
        else:
            board.scored.copy_(finished.average(results, self.method.shares(finished)))
        board.weights.copy_(weights)
        if len(board.buffers):
            board.buffers.copy_(finished.average(board.buffer_results[: len(clients)], shares))
        if self.method.client_vectors:
            for row, client in enumerate(clients):
                kept = {name: rows[row] for name, rows in board.states.items()}
                self.states.put(client, number + 1, kept)

    def _check_aggregated(self, weights: object) -> None:
        """Refuse what a method of one's own may return instead of weights."""
        size = self.board.weights.shape
        if isinstance(weights, Tensor) and weights.shape == size and weights.is_floating_point():
            return
        found = type(weights).__name__
        if isinstance(weights, Tensor):
            found = f"{weights.dtype} of shape {list(weights.shape)}"
        raise RunError(
            f"aggregate of method {self.config.method!r} returned {found}; it must return the "
            f"next weights, a float tensor of shape {list(size)}"
        )

    def _scores(self, done: int) -> Record:
        """Evaluate the model, for the record; the test set is for the final number alone where
        samples of the clients are held out."""
        config, found = self.config, Record()
        if not evaluates(config, done):
            return found
        if config.validation:
            score = self.executor.score("held_out")
            each = score.by_client(self._arrays["held_out_sizes"].tolist())
            found |= {"validation_accuracy": score.accuracy, "validation_loss": score.loss}
            found["client_accuracy"] = client_statistics(each)
            if done == config.rounds:
                found["client_accuracies"] = each
        if not config.validation or done > config.rounds - max(config.eval_tail, 1):
            score = self.executor.score()
            found |= {"test_accuracy": score.accuracy, "test_loss": score.loss}
        return found

    def _keep_best(self, done: int, scores: Record) -> None:
        chosen_on = "validation" if self.config.validation else "test"
        accuracy = scores.get(f"{chosen_on}_accuracy", -1.0)
        if accuracy <= self.state.best_accuracy:
            return
        self.state.best_accuracy, self.state.best_round = accuracy, done
        self.flat.weights.copy_(to_device(self.board.scored, self.flat.weights.device))
        self.flat.write_buffers(self.board.buffers)
        facts = {"round": done, "accuracy": accuracy, "chosen_on": CHOSEN_ON[chosen_on]}
        weights = self.flat.named(self.board.scored)  # here already, wherever the model is
        rest = self.flat.model.state_dict().items()
        whole = {k: weights[k] if k in weights else v.detach().clone() for k, v in rest}
        self.state.best_digest = storage.save_tensors(self.run.best_path, whole, facts)

    def final_scores(self) -> Record:
        """The test accuracy of the weights that validation chose; nothing without validation."""
        best, _ = storage.load_tensors(self.run.best_path, self.state.best_digest)
        if not self.config.validation:
            return {}
        self.flat.model.load_state_dict(best)
        self.board.scored.copy_(self.flat.weights)
        self.board.buffers.copy_(self.flat.read_buffers())
        return {"best_accuracy": self.executor.score().accuracy}

    def _record(
        self,
        number: int,
        lr: float,
        reports: list[ClientResult],
        answered: int,
        scores: Record,
        remarks: Record,
        seconds: Record,
    ) -> Record:
        vector = 4 * self.flat.size * answered
        payload = 4 * self.flat.buffer_size * answered
        busy = sum(report.seconds for report in reports)
        filtering = sum(report.filter_seconds for report in reports)
        return {
            "round": number + 1,
            "lr": lr,
            "train_loss": sum(report.loss for report in reports) / len(reports),
            "clients": [report.client for report in reports],
            "bytes_down": self.method.down * vector + payload,
            "bytes_up": self.method.up * vector + payload,
            **scores,
            **remarks,
            "time": time.time(),
            "seconds": {**seconds, "client_compute": busy - filtering, "client_filter": filtering},
            "filter_share": filtering / busy,
            "memory_mib": {"parent": peak_mib(), "workers": sum(self.executor.memory())},
        }
