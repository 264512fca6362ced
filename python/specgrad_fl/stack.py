"""Stacked clients: K clients as one batch of models, ``torch.func`` on stacked weights.

Where clients are small, a step costs the calls and not the arithmetic; a stack makes them once for
K clients. Weights, gradients and client states are ``[K, d]``, so that a method's correction is
the same line of code. Clients that have fewer steps than others leave the stack when they are
done, and short batches are masked. Results are those of single clients but for rounding.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from specgrad_data import Dataset
from torch import Tensor, nn
from torch.func import functional_call, vmap

from specgrad_fl import machine, prepare, samples
from specgrad_fl.client import ClientResult, ClientRunner, Optimizer, Stopwatch
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError
from specgrad_fl.filters import LoopPlan, filter_plan
from specgrad_fl.machine import peak_mib
from specgrad_fl.methods import Local, method_class
from specgrad_fl.partition import Partition
from specgrad_fl.seeding import generator
from specgrad_fl.vectors import SharedVectors, private

# numbers of clients that `auto` tries, and the memory that weights and gradients of one may take
SIZES = (16, 64, 256)
MOST_BYTES = 2**28
# of the time of single clients, that of a stack must be at most this to be chosen
WORTH = 0.8
# of the norm of a step: far above rounding, far below the part of a sample
SAME = 1e-3


@dataclass(eq=False)
class StackedRunner(ClientRunner):
    """A runner that trains the clients of a message as one stack."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._stacked_plan = filter_plan(self.flat.model, self.config, batch_dims=1)

    def train(
        self, round_number: int, lr: float, clients: list[int], rows: list[int]
    ) -> list[ClientResult]:
        """Train clients from the board's weights and put what each returns into its row."""
        begun = time.perf_counter()
        config, board, device = self.config, self.board, self.device
        purposes = {client: (config.seed, "client", round_number, client) for client in clients}
        epochs = {client: self.epochs(purposes[client]) for client in clients}
        steps = {
            client: epochs[client] * math.ceil(len(self.partition[client]) / config.batch_size)
            for client in clients
        }
        # those that leave first stand last
        order = sorted(range(len(clients)), key=lambda place: -steps[clients[place]])
        clients, rows = [clients[place] for place in order], [rows[place] for place in order]
        places = torch.tensor(rows)
        batches = self.samples.stacked_batches(
            [self.partition[client] for client in clients],
            [epochs[client] for client in clients],
            config.batch_size,
            [generator(*purposes[client], "data") for client in clients],
        )
        self.flat.model.train()
        stack = _Stack(self, lr, clients, places)
        losses = torch.zeros(len(clients), dtype=torch.float64, device=device)
        for x, y, counts in batches:
            going = len(x)
            stack.keep_first(going)
            losses[:going] += stack.step(x, y, counts)
        stack.keep_first(0)
        counted = [steps[client] for client in clients]
        losses /= torch.tensor(counted, device=device)
        board.results.index_copy_(0, places, stack.weights.to(board.results.device))
        for name, rows_of in board.states.items():
            rows_of.index_copy_(0, places, stack.states[name].to(rows_of.device))
        finite = losses.isfinite() & stack.weights.sum(1).isfinite()
        filtering = stack.filtering.total() / len(clients)
        seconds, peak = (time.perf_counter() - begun) / len(clients), peak_mib()
        values = zip(clients, counted, losses.tolist(), finite.tolist(), strict=True)
        made = [
            ClientResult(client, taken, taken * lr, loss, good, seconds, filtering, peak)
            for client, taken, loss, good in values
        ]
        return [each for _, each in sorted(zip(order, made, strict=True), key=lambda pair: pair[0])]


class _Stack:
    """The training of one stack: ``weights`` and ``states`` are ``[K, d]``."""

    def __init__(
        self, runner: StackedRunner, lr: float, clients: Sequence[int], places: Tensor
    ) -> None:
        board, device, count = runner.board, runner.device, len(clients)
        self._runner, self._model = runner, runner.flat.model
        start = board.weights.to(device)
        self.weights = start.expand(count, -1).clone()
        self._grads = torch.empty_like(self.weights)
        self.states = {name: rows[places].to(device) for name, rows in board.states.items()}
        self.filtering = Stopwatch(device)
        self._optimizer = Optimizer(runner.config, (count, runner.flat.size), device)
        self._local = Local(
            client=torch.tensor(clients)[:, None],
            w=self.weights,
            g=self._grads,
            start=start,
            sent={name: vector.to(device) for name, vector in board.sent.items()},
            state=self.states,
            lr=lr,
            filter_=self._filter,
        )

    def keep_first(self, count: int) -> None:
        """Let the first clients go on, and end the training of the others."""
        local = self._local
        if count == len(local.w):
            return
        self._runner.method.finish(_part(local, slice(count, None)))
        self._local = _part(local, slice(count))
        self._optimizer.keep_first(count)

    def step(self, x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        """Take one step of every client; return their losses."""
        runner, local, optimizer = self._runner, self._local, self._optimizer
        local.backward = partial(self._backward, x, y, counts)
        losses = runner.method.gradient(local)
        optimizer.before_filter_(local.g)
        local.filter_()
        runner.step(local, optimizer)
        return losses

    def _backward(self, x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        flat, local = self._runner.flat, self._local
        points = {
            name: view.detach().requires_grad_() for name, view in flat.views(local.w).items()
        }
        logits = vmap(partial(functional_call, self._model))(points, (x,))
        size = y.shape[1]
        each = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(-1, size)
        if int(counts.min()) < size:
            there = torch.arange(size, device=y.device) < counts[:, None]
            each = torch.where(there, each, 0.0)
        losses = each.sum(1) / counts
        grads = torch.autograd.grad(losses.sum(), list(points.values()), materialize_grads=True)
        for view, grad in zip(flat.views(local.g).values(), grads, strict=True):
            view.copy_(grad)
        return losses.detach()

    def _filter(self) -> None:
        plan = self._runner._stacked_plan
        if plan is not None:
            assert not isinstance(plan, LoopPlan)  # which is refused before
            views = self._runner.flat.views(self._local.g)
            with self.filtering.running():
                plan.filter_grads_([views[name] for name in plan.names])


def _part(local: Local, rows: slice) -> Local:
    """Some clients of a stack."""
    assert isinstance(local.client, Tensor)
    state = {name: vectors[rows] for name, vectors in local.state.items()}
    return replace(local, client=local.client[rows], w=local.w[rows], g=local.g[rows], state=state)


def resolve(
    config: Config, dataset: Dataset, partition: Partition, announce: Callable[[str], None]
) -> Config:
    """Check the setting ``stack``, and for ``auto`` replace it by the number that a trial chose."""
    reason = _unsupported(config)
    if not reason:
        trial = _Trial(config, dataset, partition)
        reason = trial.refusal()
    if config.stack != "auto":
        if reason:
            raise ConfigError(f"stack is {config.stack}, and {reason}; choose stack 1")
        return config
    if not reason:
        size, reason = trial.best_size()
        if size > 1:
            announce(f"stack: {size} clients at a time, {reason}")
            return config.replace(stack=str(size))
    announce(f"stack: clients one by one, since {reason}")
    return config.replace(stack="1")


HOOKS = ("gradient", "scale", "correction", "pull", "finish")


def _unsupported(config: Config) -> str:
    """Name what rules a stack out before the model is seen; empty if nothing does."""
    kind = method_class(config.method)
    owners = {hook: next(c for c in kind.__mro__ if hook in vars(c)) for hook in HOOKS}
    for hook, owner in owners.items():
        if not vars(owner).get("stacks"):
            return (
                f"{owner.__name__}.{hook} is not declared to work on stacked vectors [K, d] "
                "(stacks = True in its class)"
            )
    for name, plain in (("engine", "local"), ("amp", "off"), ("compile", False)):
        if getattr(config, name) != plain:
            return f"{name} is {getattr(config, name)!r}, which trains clients one by one"
    if config.filter != "none" and config.filter_backend == LoopPlan.NAME:
        return "the filter's backend 'loop' takes one client's gradients"
    return ""


class _Trial:
    """Single steps of a few clients, one by one and stacked."""

    def __init__(self, config: Config, dataset: Dataset, partition: Partition) -> None:
        kind, arrays = samples.stored(dataset, config.augment, config.channels_last)
        arrays |= partition.arrays()
        blueprint = prepare.Blueprint(config.replace(stack="1"), kind, prepare.inputs_of(dataset))
        self.flat = prepare.build_model(blueprint)
        self._config = config
        method = method_class(config.method)
        processes = machine.processes(config)
        room = MOST_BYTES // (8 * self.flat.size)
        self.most = max(2, min(math.ceil(config.active / processes), room, config.clients))
        layout = SharedVectors.layout(
            self.flat, self.most, method.sent_vectors, method.client_vectors
        )
        board = SharedVectors(private(layout))
        board.weights.copy_(self.flat.weights)
        board.buffers.copy_(self.flat.read_buffers())
        self._single = prepare.build_runner(blueprint, arrays, self.flat, board)
        size = config.batch_size
        held = partition.clients[: self.most]
        first = max(held, key=len)[:size]
        # a short batch beside a full one: nothing of its padding may reach the gradient
        held = [first, first[: max(1, len(first) // 2)], *(each[:size] for each in held[2:])]
        self._single.partition = dict(enumerate(held))
        parts = (self.flat, self._single.samples, self._single.partition, self._single.method)
        self._stacked = StackedRunner(config, *parts, board)
        self._board, self._states = board, copy.deepcopy(board.states)

    def _weights_after(self, runner: ClientRunner, count: int) -> Tensor:
        for name, rows in self._states.items():
            self._board.states[name].copy_(rows)
        runner.train(0, self._config.lr, list(range(count)), list(range(count)))
        return self._board.results[:count].clone()

    def refusal(self) -> str:
        """Name what makes the model unfit for a stack; empty if it fits."""
        model, name = self.flat.model, self._config.model
        for part, _ in model.named_buffers():
            return f"model {name!r} keeps {part}, of which a stack has one for all clients"
        for part, module in model.named_modules():
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.p:
                return f"model {name!r} has dropout ({part}), whose masks differ with the client"
        plain = self._weights_after(self._single, 2)
        try:
            stacked = self._weights_after(self._stacked, 2)
        except Exception as error:  # whatever vmap says of a user's model
            why = (str(error).splitlines() or [type(error).__name__])[0]
            return f"model {name!r} cannot be stacked ({why})"
        length = (plain - self._board.weights).norm(dim=1)
        if bool(((stacked - plain).norm(dim=1) > SAME * length).any()):
            return f"the samples of a batch change each other's result in model {name!r}"
        return ""

    def best_size(self) -> tuple[int, str]:
        """The fastest number of clients, or 1, and the times of a step."""
        single = self._seconds(self._single, 2)
        best, least = 1, WORTH * single
        for size in sorted({*(each for each in SIZES if each < self.most), self.most}):
            if size > 4 * SIZES[-1]:
                break
            taken = self._seconds(self._stacked, size)
            if taken >= least:
                break
            best, least = size, 0.9 * taken
        told = f"{1e3 * single:.2f} ms a step one by one"
        if best == 1:
            return 1, f"that is as fast ({told})"
        return best, f"{1e3 * least / 0.9:.2f} ms a step instead of {told}"

    def _seconds(self, runner: ClientRunner, count: int) -> float:
        """Least seconds for a client and step, of three trials."""
        times = []
        for _ in range(3):
            begun = time.perf_counter()
            self._weights_after(runner, count)
            times.append(time.perf_counter() - begun)
        return min(times) / count
