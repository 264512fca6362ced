"""A client's local training: the step that all methods share.

1. g: gradient of the data loss; 2. u: filtered; 3. clipped; 4. v: with the method's correction;
5. w <- w - lr (v + weight_decay w). A momentum stands before 2 or inside 5, Adam inside 5.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specgrad_fl.config import Config
from specgrad_fl.filters import filter_plan
from specgrad_fl.graphed import GraphedStep, capturing
from specgrad_fl.machine import AMP_DTYPES, keep_freed_memory, peak_mib
from specgrad_fl.methods import Local, Method
from specgrad_fl.samples import Samples
from specgrad_fl.seeding import derive, generator
from specgrad_fl.vectors import FlatModel, SharedVectors, to_device, to_host

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
    """Adds up the time of marked passages; on a GPU without waiting for each of them.

    Passages of a CUDA graph are left out: their times are known to nobody.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._events: list[tuple[Any, Any]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        if capturing(self._device):
            yield
        elif self._device.type == "cuda":
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
        """Seconds so far, of passages that the host has waited for."""
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

    def restart(self) -> None:
        """Begin anew, in the same memory."""
        self._steps = 0
        self._mean.zero_()
        self._square.zero_()

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
class Training:
    """The training of one client in progress; its tensors serve all clients of a runner."""

    runner: ClientRunner
    local: Local
    optimizer: Optimizer
    losses: Tensor
    filtering: Stopwatch
    scale: LossScale
    batches: int = 0

    def step(self, drawn: Tensor, seed: int) -> bool:
        """Take one step on a batch; false if its gradient overflowed and it was left out."""
        runner, local, grads = self.runner, self.local, self.runner.flat.grads
        local.backward = partial(runner.backward, *runner.samples.gather(drawn), seed, self.scale)
        self.losses += runner.method.gradient(local)
        if not self.scale.unscale_(grads):
            return False
        self.optimizer.before_filter_(grads)
        local.filter_()
        runner.step(local, self.optimizer)
        return True


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
        self._received: dict[str, Tensor] = {}
        self._optimizer = Optimizer(self.config, (self.flat.size,), self.device)
        self._losses = torch.zeros((), dtype=torch.float64, device=self.device)
        self.graphs = GraphedStep(self.config, self.device)
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def _autocast(self) -> Any:
        if self.config.amp == "off":
            return nullcontext()
        return torch.autocast(self.device.type, AMP_DTYPES[self.config.amp])

    def train(
        self, round_number: int, lr: float, clients: list[int], rows: list[int]
    ) -> list[ClientResult]:
        """Train clients from the board's weights and put what each returns into its row."""
        pairs = zip(clients, rows, strict=True)
        results = [self.begin(round_number, lr, client, row)() for client, row in pairs]
        peak = peak_mib()
        return [replace(result, peak_mib=peak) for result in results]

    def begin(
        self, round_number: int, lr: float, client: int, row: int
    ) -> Callable[[], ClientResult]:
        """Queue the training of a client; the returned function waits for it and fills its row."""
        begun = time.perf_counter()
        if self._stream is None:
            return self._begin(round_number, lr, client, row, begun)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            return self._begin(round_number, lr, client, row, begun)

    def _begin(
        self, round_number: int, lr: float, client: int, row: int, begun: float
    ) -> Callable[[], ClientResult]:
        board, flat = self.board, self.flat
        training = self.graphs.checked(lambda: self._train_one(round_number, lr, client, row))
        local, filtering = training.local, training.filtering
        numbers = to_host(torch.stack([self._losses, flat.weights.sum()]))
        copies = [(board.results[row], to_host(flat.weights))]
        copies += [(board.states[name][row], to_host(v)) for name, v in local.state.items()]
        copies += [(board.buffer_results[row], to_host(flat.read_buffers()))]
        queued = torch.cuda.Event() if self._stream else None
        if queued:
            queued.record(self._stream)

        def end() -> ClientResult:
            if queued:
                queued.synchronize()
            for place, vector in copies:
                place.copy_(vector)
            losses, total = numbers.tolist()
            loss = losses / training.batches
            return ClientResult(
                client=client,
                steps=local.steps,
                lr_sum=local.lr_sum,
                loss=loss,
                finite=math.isfinite(loss) and math.isfinite(total),
                filter_seconds=filtering.total(),
                seconds=time.perf_counter() - begun,
            )

        return end

    def _train_one(self, round_number: int, lr: float, client: int, row: int) -> Training:
        """All steps of a client, as graphs where that is possible."""
        config, board, flat = self.config, self.board, self.flat
        filtering = Stopwatch(self.device)
        purpose = (config.seed, "client", round_number, client)
        masks = derive(*purpose, "dropout")
        flat.model.train()
        start = self._receive("weights", board.weights)
        flat.weights.copy_(start)
        flat.write_buffers(board.buffers)
        local = Local(
            client=client,
            w=flat.weights,
            g=flat.grads,
            start=start,
            sent={name: self._receive(f"sent-{name}", v) for name, v in board.sent.items()},
            state={
                name: self._receive(f"state-{name}", v[row]) for name, v in board.states.items()
            },
            lr=lr,
            filter_=lambda: self._filter(filtering),
        )
        self._losses.zero_()
        self._optimizer.restart()
        scale = LossScale(config.amp == "fp16")
        training = Training(self, local, self._optimizer, self._losses, filtering, scale)
        draws = self.samples.train_draws(
            self.partition[client],
            self.epochs(purpose),
            config.batch_size,
            generator(*purpose, "data"),
        )
        for training.batches, drawn in enumerate(draws, start=1):
            replayed = self.graphs.replay(training, round_number, drawn)
            if replayed or training.step(drawn, masks + training.batches):
                local.steps += 1
        self.method.finish(local)
        return training

    def _receive(self, name: str, vector: Tensor) -> Tensor:
        """Copy a vector to the device, always to the same place: graphs read it there."""
        if self.device.type == "cpu":
            return vector
        if name not in self._received:
            self._received[name] = torch.empty_like(vector, device=self.device)
        return self._received[name].copy_(vector.pin_memory(), non_blocking=True)

    def epochs(self, purpose: tuple[int, str, int, int]) -> int:
        """Local epochs of a client in a round: those of the setting, or drawn from its range."""
        fewest, most = self.config.fewest_and_most_epochs
        if fewest == most:
            return fewest
        return int(torch.randint(fewest, most + 1, (), generator=generator(*purpose, "epochs")))

    def backward(self, x: Tensor, y: Tensor, seed: int, scale: LossScale) -> Tensor:
        """Gradient of a batch at the current weights; the same dropout masks for the same seed."""
        if not capturing(self.device):
            # torch's own function also notes the whole call stack, for devices that are not there
            on_cpu = self.device.type == "cpu"
            (torch.default_generator.manual_seed if on_cpu else torch.manual_seed)(seed)
        with self._autocast():
            loss = F.cross_entropy(self._forward(x), y)
        self.flat.write_grads(loss if scale.value == 1.0 else loss * scale.value)
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

    def _clip_(self, g: Tensor) -> None:
        """Bound each client's norm without asking for its value, which would stall a GPU."""
        if self.config.clip:
            norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
            g.mul_((self.config.clip / (norm + 1e-6)).clamp_(max=1.0))

    @torch.inference_mode()
    def score(self, part: str, start: int, stop: int) -> tuple[list[int], list[float]]:
        """Right answers (1 or 0) and summed loss of each batch of the board's scored model."""
        self.flat.model.eval()
        size = self.config.samples_scored_at_once
        right, losses = [], []
        for first in range(start, stop, size):
            last = min(first + size, stop)
            if part == "test":
                x, y = self.samples.test_batch(first, last)
            else:
                x, y = self.samples.train_batch(self.held_out[first:last])
            with self._autocast():
                logits = self.flat.model(x).float()
            losses.append(F.cross_entropy(logits, y, reduction="sum"))
            right.append(logits.argmax(1) == y)
        answers = to_host(torch.cat(right).int()), to_host(torch.stack(losses))
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return answers[0].tolist(), answers[1].tolist()

    def load_scored(self) -> None:
        """Make the board's scored model the current one."""
        self.flat.weights.copy_(to_device(self.board.scored, self.device))
        self.flat.write_buffers(self.board.buffers)


def _add_(g: Tensor, w: Tensor, factor: float | Tensor) -> None:
    """Add ``w`` times a number, or times a number for each client ``[K, 1]``."""
    if isinstance(factor, Tensor) and factor.dim():
        g.addcmul_(w, factor.to(w.dtype))
    else:
        g.add_(w, alpha=float(factor))
