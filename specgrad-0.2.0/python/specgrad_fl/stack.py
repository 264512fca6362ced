"""Stacked clients: K clients as one batch of models, ``torch.func`` on stacked weights.

Where clients are small, a step costs the calls and not the arithmetic; a stack makes them once for
K clients. Weights, gradients and client states are ``[K, d]``, so that a method's correction is
the same line of code. Clients that have fewer steps than others leave the stack when they are
done, and short batches are masked. Results are those of single clients but for rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode

from specgrad_fl.client import ClientResult, ClientRunner, Optimizer, Stopwatch
from specgrad_fl.filters import LoopPlan, filter_plan
from specgrad_fl.machine import peak_mib
from specgrad_fl.methods import Local
from specgrad_fl.seeding import derive


@dataclass(eq=False)
class StackedRunner(ClientRunner):
    """A runner that trains the clients of a message as one stack."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._stacked_plan = filter_plan(self.flat.model, self.config, batch_dims=1)
        self._batches = {
            client: math.ceil(len(held) / self.config.batch_size)
            for client, held in self.partition.items()
        }

    def train(
        self, round_number: int, lr: float, clients: list[int], rows: list[int]
    ) -> list[ClientResult]:
        """Train clients from the board's weights and put what each returns into its row."""
        begun = time.perf_counter()
        config, board, device = self.config, self.board, self.device
        purposes = {client: (config.seed, "client", round_number, client) for client in clients}
        fewest, most = config.fewest_and_most_epochs
        epochs = {
            client: fewest if fewest == most else self.epochs(purposes[client])
            for client in clients
        }
        steps = {client: epochs[client] * self._batches[client] for client in clients}
        # those that leave first stand last
        order = sorted(range(len(clients)), key=lambda place: -steps[clients[place]])
        clients, rows = [clients[place] for place in order], [rows[place] for place in order]
        places, drawn = torch.tensor(rows), torch.Generator()
        batches = self.samples.stacked_batches(
            [self.partition[client] for client in clients],
            [epochs[client] for client in clients],
            config.batch_size,
            # one after the other is drawn from, so that one generator serves them all
            (drawn.manual_seed(derive(*purposes[client], "data")) for client in clients),
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
        local.steps += 1
        return losses

    def _backward(self, x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        flat, local = self._runner.flat, self._local
        points = {
            name: view.detach().requires_grad_() for name, view in flat.views(local.w).items()
        }
        with _LinearOfStack():
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


class _LinearOfStack(TorchFunctionMode):
    """``F.linear`` as ``(W x^T)^T``: then the gradient by ``W`` is a product of short columns with
    long rows, which a batched BLAS does five times as fast as the transposed one."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear and len(args) + len(kwargs or {}) == 3:
            return self._linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.dim() != 2:
            return F.linear(input, weight, bias)
        product = torch.matmul(weight, input.transpose(0, 1)).transpose(0, 1)
        return product if bias is None else product + bias


def _part(local: Local, rows: slice) -> Local:
    """Some clients of a stack."""
    assert isinstance(local.client, Tensor)
    state = {name: vectors[rows] for name, vectors in local.state.items()}
    return replace(local, client=local.client[rows], w=local.w[rows], g=local.g[rows], state=state)
