"""Choose how many clients are stacked: what can be stacked at all, and what a short trial says."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable

from specgrad_data import Dataset
from torch import Tensor, nn

from specgrad_fl import building, machine, samples
from specgrad_fl.client import ClientRunner
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError
from specgrad_fl.filters import LoopPlan
from specgrad_fl.methods import method_class
from specgrad_fl.partition import Partition
from specgrad_fl.stack import StackedRunner
from specgrad_fl.vectors import SharedVectors, private

# numbers of clients that `auto` tries, and the memory that weights and gradients of one may take
SIZES = (16, 64, 256)
MOST_BYTES = 2**28
# of the time of single clients, that of a stack must be at most this to be chosen
WORTH = 0.8
# of the norm of a step: far above rounding, far below the part of a sample
SAME = 1e-3


def resolve(
    config: Config, dataset: Dataset, partition: Partition, announce: Callable[[str], None]
) -> Config:
    """Check the setting ``stack``, and for ``auto`` replace it by the number that a trial chose."""
    reason = _unsupported(config)
    if not reason:
        trial = _Trial(config, dataset, partition)
        reason = trial.too_large() if config.stack == "auto" else ""
        reason = reason or trial.refusal()
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
        form, arrays = samples.stored(dataset, config.augment, config.channels_last)
        arrays |= partition.arrays()
        blueprint = building.Blueprint(config.replace(stack="1"), form, building.inputs_of(dataset))
        self.flat = building.build_model(blueprint)
        self._config = config
        method = method_class(config.method)
        processes = machine.processes(config)
        self.room = MOST_BYTES // (8 * self.flat.size)
        self.most = max(2, min(math.ceil(config.active / processes), self.room, config.clients))
        layout = SharedVectors.layout(
            self.flat, self.most, method.sent_vectors, method.client_vectors
        )
        board = SharedVectors(private(layout))
        board.weights.copy_(self.flat.weights)
        board.buffers.copy_(self.flat.read_buffers())
        self._single = building.build_runner(blueprint, arrays, self.flat, board)
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

    def too_large(self) -> str:
        """Say that a model is too large to gain from a stack; empty if a trial is worth while."""
        if self.room > 1:
            return ""
        return f"weights and gradients of two clients take more than {MOST_BYTES // 2**20} MiB"

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
            best, least = size, taken
        told = f"{1e3 * single:.2f} ms a step one by one"
        if best == 1:
            return 1, f"that is as fast ({told})"
        return best, f"{1e3 * least:.2f} ms a step instead of {told}"

    def _seconds(self, runner: ClientRunner, count: int) -> float:
        """Least seconds for a client and step, of three trials."""
        times = []
        for _ in range(3):
            begun = time.perf_counter()
            self._weights_after(runner, count)
            times.append(time.perf_counter() - begun)
        return min(times) / count
