"""A client's step as a CUDA graph: captured once in a round, replayed for every full batch.

Augmentation, backward pass, filter and step of a small model are some 300 launches, and a GPU waits
for the host that makes them; a replay is one. A graph reads and writes the same memory every time,
so everything that differs between batches and clients is copied to fixed places before. What the
host decides is frozen: the learning rate (captured anew in each round), and the client's number
where a method asks for it (captured anew for each client).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specgrad_fl.config import Config
from specgrad_fl.methods import Local

if TYPE_CHECKING:
    from specgrad_fl.client import Training


def capturing(device: torch.device) -> bool:
    """Return true while the work of this thread goes into a graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def eager_reason(config: Config, device: torch.device) -> str | None:
    """Return None if steps of this run may be replayed, else the reason."""
    reasons = {
        f"the device is {device}": device.type != "cuda",
        "fp16 asks after every step whether its gradient overflowed": config.amp == "fp16",
        "Adam counts its steps on the host": config.optimizer == "adam",
        "graphs is false": not config.graphs,
        "the model is compiled": config.compile,
        "clients are trained as a stack": config.clients_in_a_stack > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class _NotedLocal(Local):
    """A client's training that notes which values of the host a step asks for."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("client", "steps"):
            self.__dict__.setdefault("asked", set()).add(name)
        return super().__getattribute__(name)


class GraphedStep:
    """Steps of one runner: replayed where that is possible, left to the eager step elsewhere.

    reason: why no step is replayed, or None
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        self.reason = eager_reason(config, device)
        self._device, self._batch = device, config.batch_size
        self._compared = self._comparing = False
        self._replayed = self._eager = 0
        self._drawn: Tensor | None = None
        self._graph: Any = None
        self._frozen: tuple[Any, ...] = ()

    def checked(self, train: Callable[[], Training]) -> Training:
        """Train a client; the first one whose steps are replayed is trained eagerly as well.

        Graphs are left, with a warning, unless both ways give the same bits.
        """
        if self.reason or self._compared:
            return train()
        self._comparing = True
        expected = _outcome(train())
        self._comparing = False
        if self._draws_random_numbers():
            self._leave("the model draws random numbers, such as those of dropout")
        trained = train()
        self._compared = self._replayed > 0
        found = _outcome(trained)
        if all(map(torch.equal, found, expected)):
            return trained
        self.reason = "replayed steps and eager ones differed"
        self._replayed = self._eager = 0
        trained = train()
        warnings.warn(
            "steps replayed as CUDA graphs differ from eager ones by up to "
            f"{_distance(found, expected):.3g} in weights, state or loss, two eager trainings by "
            f"{_distance(_outcome(trained), expected):.3g}; this run goes on eagerly",
            stacklevel=2,
        )
        return trained

    def replay(self, training: Training, round_number: int, drawn: Tensor) -> bool:
        """Take a step by replaying its graph; false if it has to be taken eagerly."""
        if self._comparing:
            return False
        if self.reason is None and drawn.shape[1] == self._batch:
            frozen = (round_number, training.local.lr, training.runner.samples)
            client = training.local.client
            if self._frozen in ((*frozen, None), (*frozen, client)) or self._capture(
                training, frozen, drawn
            ):
                assert self._drawn is not None
                self._drawn.copy_(drawn)
                self._graph.replay()
                self._replayed += 1
                return True
        self._eager += 1
        return False

    def remark(self) -> str:
        """Say how the steps since the last remark were taken."""
        counts = f"{self._replayed} replayed as CUDA graphs, {self._eager} eager"
        if self._eager:
            counts += f": {self.reason or 'their batches are not full'}"
        self._replayed = self._eager = 0
        return counts

    def _capture(self, training: Training, frozen: tuple[Any, ...], drawn: Tensor) -> bool:
        """Capture a step; false, and a warning, if it cannot be."""
        if self._drawn is None:
            self._drawn = drawn.clone(memory_format=torch.contiguous_format)
            self._pool = torch.cuda.graph_pool_handle()
        given = {
            f.name: getattr(training.local, f.name) for f in dataclasses.fields(Local) if f.init
        }
        local = _NotedLocal(**given)
        graph = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(self._pool)
            try:
                dataclasses.replace(training, local=local).step(self._drawn, 0)
            finally:
                graph.capture_end()
        except RuntimeError as error:
            self._leave(f"a step cannot be captured ({str(error).splitlines()[0]})")
            return False
        asked = vars(local).get("asked", ())
        if "steps" in asked:
            self._leave(f"{training.runner.config.method} asks for the number of steps")
            return False
        self._graph = graph
        self._frozen = (*frozen, training.local.client if "client" in asked else None)
        return True

    def _leave(self, reason: str) -> None:
        self.reason = reason
        warnings.warn(f"no steps are replayed as CUDA graphs: {reason}", stacklevel=3)

    def _draws_random_numbers(self) -> bool:
        """Return true if the last step, which began with a seed, went on from it."""
        with torch.cuda.device(self._device):
            state = torch.cuda.get_rng_state(self._device)
            torch.cuda.manual_seed(torch.cuda.initial_seed())
            return not torch.equal(state, torch.cuda.get_rng_state(self._device))


def _outcome(training: Training) -> list[Tensor]:
    """Copies of everything that the training of a client has made."""
    flat = training.runner.flat
    made = [flat.weights, training.losses, flat.read_buffers(), *training.local.state.values()]
    return [tensor.clone() for tensor in made]


def _distance(these: list[Tensor], those: list[Tensor]) -> float:
    """Largest difference of two outcomes."""
    pairs = zip(these, those, strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs if a.numel())
