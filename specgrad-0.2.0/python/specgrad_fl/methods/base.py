"""Base class of federated methods: a client's correction and state, the server's aggregation.

All vectors are flat, float32, of the model's length ``d``. A method is one class; see
``docs/trainer.md`` for a worked example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

Vectors = dict[str, Tensor]


@dataclass(frozen=True)
class Federation:
    """Facts that a method may know before the first round.

    sizes: ``int64 [K]`` samples of each client
    histograms: ``int64 [K, C]`` labels of each client
    test_histogram: ``int64 [C]`` labels of the test set
    groups: slices of the flat vector that belong together, such as a convolution and its norm
    """

    sizes: Tensor
    histograms: Tensor
    test_histogram: Tensor
    size: int
    groups: tuple[slice, ...]
    server_lr: float = 1.0

    @property
    def clients(self) -> int:
        return len(self.sizes)


@dataclass
class Local:
    """One client's training in progress, or that of a stack, whose w, g and state are ``[K, d]``.

    client: its number, or those of a stack, ``int64 [K, 1]``
    w: the current weights, changed in place by every step
    g: the gradient of the current batch
    start: the weights that the server sent
    sent: what the server sent besides; state: what this client kept, to be changed in place
    lr: learning rate of this round; steps: steps taken so far
    backward: puts the gradient of the current batch at ``w`` into ``g``, returns the loss
    filter_: filters ``g`` in place
    """

    client: int | Tensor
    w: Tensor
    g: Tensor
    start: Tensor
    sent: Vectors
    state: Vectors
    lr: float
    filter_: Callable[[], None]
    backward: Callable[[], Tensor] = field(init=False)
    steps: int = 0

    @property
    def lr_sum(self) -> float:
        """The sum of the learning rates actually applied."""
        return self.steps * self.lr


@dataclass(frozen=True)
class Round:
    """Results of a round, as the server has them.

    clients: ids in ascending order; weights: ``float64 [M]``, their shares of the samples
    start: the weights that were sent; results: ``[M, d]`` the clients' weights
    lr_sums: ``float64 [M]``, the learning rates each client applied, summed
    aggregation: the name of the rule in :data:`AGGREGATIONS` that averages clients
    """

    number: int
    clients: Tensor
    weights: Tensor
    start: Tensor
    results: Tensor
    lr_sums: Tensor
    aggregation: str = "mean"

    def average(self, rows: Tensor, shares: Tensor) -> Tensor:
        """Average one vector of each client, as the setting ``aggregation`` says."""
        return AGGREGATIONS[self.aggregation](rows, shares)

    @property
    def uniform(self) -> Tensor:
        """Equal shares."""
        count = len(self.clients)
        return torch.full((count,), 1 / count, dtype=torch.float64)

    def applied(self, without_step: Tensor) -> Tensor:
        """``[M, d]`` each client's change over its summed learning rate: the mean step it took.

        A client that took none (mixed precision skips steps that overflow) gets ``without_step``.
        """
        steps = (self.results - self.start) / -self.lr_sums[:, None].float()
        return torch.where(self.lr_sums[:, None] > 0, steps, without_step)


def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """The sum of ``weights[k] * rows[k]``, in double precision and in the order of the rows."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for row, weight in zip(rows, weights.tolist(), strict=True):
        total.add_(row, alpha=weight)
    return total.to(rows.dtype)


# of a coordinate's values, the share that a trimmed mean drops at each end
TRIMMED = 0.3


def trimmed_mean(rows: Tensor, shares: Tensor) -> Tensor:
    """Mean of each coordinate without its largest and smallest values.

    Every client counts the same; ``shares`` gives the result its scale, their sum.
    """
    return _mean_of_middle(rows, int(TRIMMED * len(rows))) * float(shares.sum())


def median(rows: Tensor, shares: Tensor) -> Tensor:
    """Median of each coordinate, the mean of two where the number of clients is even."""
    return _mean_of_middle(rows, (len(rows) - 1) // 2) * float(shares.sum())


def _mean_of_middle(rows: Tensor, dropped: int) -> Tensor:
    ordered = rows.sort(0).values[dropped : len(rows) - dropped]
    return ordered.mean(0, dtype=torch.float64).to(rows.dtype)


AGGREGATIONS = {"mean": weighted_sum, "median": median, "trimmed_mean": trimmed_mean}


def option(default: Any, **limits: Any) -> Any:
    """A method's option; limits as of :func:`specgrad_fl.config.setting`."""
    return field(default=default, metadata=limits)


@dataclass(frozen=True)
class NoOptions:
    """A method without options of its own."""


class Method:
    """FedAvg; every other method changes a part of it.

    client_vectors: names of the vectors a client keeps between rounds, zero at first
    sent_vectors: names of the server's vectors that are sent with the weights
    down, up: payload for each active client, in multiples of ``d``
    needs_plain_steps: whether steps must be ``lr`` times a gradient, without momentum or Adam
    stacks: whether gradient, correction and finish of this class also work on a stack of clients,
        whose w, g and state are ``[K, d]``; a subclass that overrides them says so itself
    """

    name: ClassVar[str] = "fedavg"
    Options: ClassVar[type] = NoOptions
    client_vectors: ClassVar[tuple[str, ...]] = ()
    sent_vectors: ClassVar[tuple[str, ...]] = ()
    down: ClassVar[int] = 1
    up: ClassVar[int] = 1
    needs_plain_steps: ClassVar[bool] = False
    stacks: ClassVar[bool] = True

    def __init__(self, options: Any, federation: Federation) -> None:
        self.options = options
        self.federation = federation

    def server_state(self) -> Vectors:
        """The server's tensors besides the weights, before the first round."""
        return {name: torch.zeros(self.federation.size) for name in self.sent_vectors}

    def gradient(self, local: Local) -> Tensor:
        """Put the data gradient of the batch into ``local.g`` and return the loss."""
        return local.backward()

    @property
    def scale(self) -> float:
        """Factor on the filtered and clipped data gradient."""
        return 1.0

    def correction(self, local: Local) -> Tensor | None:
        """Correction added to the data gradient, never filtered: a new tensor, or ``None``."""
        return None

    def pull(self, client: int | Tensor) -> float | Tensor:
        """The coefficient of ``w`` inside the correction (only ``clip_scope=corrected`` asks)."""
        return 0.0

    def finish(self, local: Local) -> None:
        """Change ``local.state`` in place after the last step."""

    def shares(self, round: Round) -> Tensor:
        """Weights of the clients in the average, ``float64 [M]``."""
        return round.weights

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        """The next weights; ``server`` is changed in place."""
        return self.server_step(round, round.average(round.results, self.shares(round)))

    def server_step(self, round: Round, average: Tensor) -> Tensor:
        """From the old weights towards the average, all the way at server learning rate 1."""
        rate = self.federation.server_lr
        return average if rate == 1.0 else torch.lerp(round.start, average, rate)
