"""A client's local training: the step that all methods share.

1. g: gradient of the data loss; 2. u: filtered; 3. clipped; 4. v: with the method's correction;
5. w <- w - lr (v + weight_decay w). A momentum stands before 2 or inside 5, Adam inside 5.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specgrad_fl.config import Config
from specgrad_fl.filters import filter_plan
from specgrad_fl.machine import AMP_DTYPES, keep_freed_memory, peak_mib
from specgrad_fl.methods import Local, Method
from specgrad_fl.samples import Samples
from specgrad_fl.seeding import derive, generator
from specgrad_fl.vectors import FlatModel, SharedVectors

# decay of the mean, decay of the squares, and what keeps the quotient finite
ADAM = (0.9, 0.999, 1e-8)
NO_SAMPLES = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class ClientResult:
    """Metrics returned with a client's weights.

    loss: mean over its batches; peak_mib: memory of its process when its message was answered
    """

    client: int
    steps: int
    lr_sum: float
    loss: float
    finite: bool
    seconds: float
    filter_seconds: float
    peak_mib: float = 0.0


class Stopwatch:
    """Adds up the time of marked passages; on a GPU without waiting for each of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._events: list[tuple[Any, Any]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        if self._device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            stream = torch.cuda.current_stream(self._device)  # by default that of the first GPU
            begin.record(stream)
            yield
            end.record(stream)
            self._events.append((begin, end))
        else:
            begun = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - begun

    def total(self) -> float:
        """Seconds so far."""
        if self._events:
            torch.cuda.synchronize(self._device)
            self._seconds += sum(a.elapsed_time(b) for a, b in self._events) / 1000
            self._events.clear()
        return self._seconds


class LossScale:
    """Loss scaling for fp16: halved after an overflow, whose step is left out."""

    def __init__(self, active: bool) -> None:
        self.value = 2.0**14 if active else 1.0
        self._active = active

    def unscale_(self, grads: Tensor) -> bool:
        """Undo the scaling in place; whether the gradient can be used."""
        if not self._active:
            return True
        grads.mul_(1 / self.value)
        usable = bool(torch.isfinite(grads.sum()))
        if not usable:
            self.value /= 2
        return usable


class Optimizer:
    """Local optimizer: turns a gradient into a step, by SGD, momentum or Adam.

    Begins anew with every client and round: nothing of it is kept or sent.
    """

    def __init__(self, config: Config, shape: tuple[int, ...], device: torch.device) -> None:
        self._adam = config.optimizer == "adam"
        self._momentum = ADAM[0] if self._adam else config.momentum
        self._before = config.momentum_place == "before" and not self._adam
        self._nesterov = config.nesterov
        self._steps = 0
        self._mean = torch.zeros(shape if self._momentum else 0, device=device)
        self._square = torch.zeros(shape if self._adam else 0, device=device)

    def keep_first(self, count: int) -> None:
        """Forget all but the first clients of a stack."""
        self._mean, self._square = self._mean[:count], self._square[:count]

    def before_filter_(self, g: Tensor) -> None:
        """The data gradient's momentum in its place, where that was asked for."""
        if self._before and self._momentum:
            self._heavy_ball_(g)

    def after_filter_(self, g: Tensor) -> None:
        """The whole step's momentum in its place, or Adam's step."""
        if self._adam:
            self._adam_(g)
        elif self._momentum and not self._before:
            self._heavy_ball_(g)

    def _heavy_ball_(self, g: Tensor) -> None:
        self._mean.mul_(self._momentum).add_(g)
        if self._nesterov:
            g.add_(self._mean, alpha=self._momentum)
        else:
            g.copy_(self._mean)

    def _adam_(self, g: Tensor) -> None:
        first, second, tiny = ADAM
        self._steps += 1
        self._mean.lerp_(g, 1 - first)
        self._square.mul_(second).addcmul_(g, g, value=1 - second)
        scale = self._square.sqrt().div_((1 - second**self._steps) ** 0.5).add_(tiny)
        g.copy_(self._mean).div_(scale).div_(1 - first**self._steps)


@dataclass(eq=False)
class ClientRunner:
    """One model that trains any client, and scores batches of the test set."""

    config: Config
    flat: FlatModel
    samples: Samples
    partition: Mapping[int, Tensor]
    method: Method
    board: SharedVectors
    held_out: Tensor = NO_SAMPLES

    def __post_init__(self) -> None:
        keep_freed_memory()
        self.device = self.samples.device
        self.plan = filter_plan(self.flat.model, self.config)
        self._forward = torch.compile(self.flat.model) if self.config.compile else self.flat.model

    def _autocast(self) -> Any:
        if self.config.amp == "off":
            return nullcontext()
        return torch.autocast(self.device.type, AMP_DTYPES[self.config.amp])

    def train(
        self, round_number: int, lr: float, clients: list[int], rows: list[int]
    ) -> list[ClientResult]:
        """Train clients from the board's weights and put what each returns into its row."""
        pairs = zip(clients, rows, strict=True)
        results = [self._train_one(round_number, lr, client, row) for client, row in pairs]
        peak = peak_mib()
        return [replace(result, peak_mib=peak) for result in results]

    def _train_one(self, round_number: int, lr: float, client: int, row: int) -> ClientResult:
        begun = time.perf_counter()
        config, board, flat = self.config, self.board, self.flat
        filtering = Stopwatch(self.device)
        purpose = (config.seed, "client", round_number, client)
        flat.model.train()
        start = board.weights.to(self.device)
        flat.weights.copy_(start)
        flat.write_buffers(board.buffers)
        kept = {name: rows[row] for name, rows in board.states.items()}
        scale = LossScale(config.amp == "fp16")
        masks = derive(*purpose, "dropout")
        local = Local(
            client=client,
            w=flat.weights,
            g=flat.grads,
            start=start,
            sent={name: vector.to(self.device) for name, vector in board.sent.items()},
            state={name: vector.to(self.device) for name, vector in kept.items()},
            lr=lr,
            filter_=lambda: self._filter(filtering),
        )
        losses = torch.zeros((), dtype=torch.float64, device=self.device)
        batches = self.samples.train_batches(
            self.partition[client],
            self.epochs(purpose),
            config.batch_size,
            generator(*purpose, "data"),
        )
        optimizer = Optimizer(config, (flat.size,), self.device)
        for number, (x, y) in enumerate(batches, start=1):
            local.backward = partial(self._backward, x, y, masks + number, scale)
            losses += self.method.gradient(local)
            if scale.unscale_(flat.grads):
                optimizer.before_filter_(flat.grads)
                local.filter_()
                self.step(local, optimizer)
        self.method.finish(local)
        board.results[row].copy_(flat.weights)
        for name, vector in kept.items():
            vector.copy_(local.state[name])
        board.buffer_results[row].copy_(flat.read_buffers())
        loss = float(losses) / number
        return ClientResult(
            client=client,
            steps=local.steps,
            lr_sum=local.lr_sum,
            loss=loss,
            finite=math.isfinite(loss) and bool(torch.isfinite(flat.weights.sum())),
            filter_seconds=filtering.total(),
            seconds=time.perf_counter() - begun,
        )

    def epochs(self, purpose: tuple[int, str, int, int]) -> int:
        """Local epochs of a client in a round: those of the setting, or drawn from its range."""
        fewest, most = self.config.fewest_and_most_epochs
        if fewest == most:
            return fewest
        return int(torch.randint(fewest, most + 1, (), generator=generator(*purpose, "epochs")))

    def _backward(self, x: Tensor, y: Tensor, seed: int, scale: LossScale) -> Tensor:
        """Gradient of a batch at the current weights; the same dropout masks for the same seed."""
        # torch's own function also notes the whole call stack, for devices that are not there
        on_cpu = x.device.type == "cpu"
        (torch.default_generator.manual_seed if on_cpu else torch.manual_seed)(seed)
        self.flat.grads.zero_()
        with self._autocast():
            loss = F.cross_entropy(self._forward(x), y)
        (loss if scale.value == 1.0 else loss * scale.value).backward()
        return loss.detach()

    def _filter(self, stopwatch: Stopwatch) -> None:
        if self.plan is not None:
            with stopwatch.running():
                self.plan.filter_grads_()

    @torch.no_grad()
    def step(self, local: Local, optimizer: Optimizer) -> None:
        """Clip, correct, decay, descend: one client, or every client of a stack."""
        config, method, g, w = self.config, self.method, local.g, local.w
        correction = method.correction(local)
        if config.clip_scope == "data":
            self._clip_(g)
        if method.scale != 1.0:
            g.mul_(method.scale)
        if correction is not None:
            g.add_(correction)
        if config.clip_scope == "corrected":
            pull = method.pull(local.client)
            _add_(g, w, -pull)
            self._clip_(g)
            _add_(g, w, pull)
        if config.weight_decay:
            g.add_(w, alpha=config.weight_decay)
        optimizer.after_filter_(g)
        w.add_(g, alpha=-local.lr)
        local.steps += 1

    def _clip_(self, g: Tensor) -> None:
        """Bound each client's norm without asking for its value, which would stall a GPU."""
        if self.config.clip:
            norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
            g.mul_((self.config.clip / (norm + 1e-6)).clamp_(max=1.0))

    @torch.inference_mode()
    def score(self, part: str, start: int, stop: int) -> tuple[list[int], float]:
        """Right answers (1 or 0) and summed loss of the board's scored model on some samples."""
        self.flat.model.eval()
        if part == "test":
            x, y = self.samples.test_batch(start, stop)
        else:
            x, y = self.samples.train_batch(self.held_out[start:stop])
        with self._autocast():
            logits = self.flat.model(x).float()
        loss = F.cross_entropy(logits, y, reduction="sum")
        return (logits.argmax(1) == y).int().tolist(), float(loss)

    def load_scored(self) -> None:
        """Make the board's scored model the current one."""
        self.flat.weights.copy_(self.board.scored)
        self.flat.write_buffers(self.board.buffers)


def _add_(g: Tensor, w: Tensor, factor: float | Tensor) -> None:
    """Add ``w`` times a number, or times a number for each client ``[K, 1]``."""
    if isinstance(factor, Tensor) and factor.dim():
        g.addcmul_(w, factor.to(w.dtype))
    else:
        g.add_(w, alpha=float(factor))
