"""FedLWS: the average is shrunk layer by layer, more where clients disagree more."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specgrad_fl.methods.base import Method, Round, Vectors, at_least, weighted_sum


@dataclass(frozen=True)
class Options:
    beta: float = 0.03
    tau_min: float = 0.01
    tau_max: float = 0.2

    def __post_init__(self) -> None:
        at_least("beta", self.beta, 0)
        at_least("tau_min", self.tau_min, 0)
        at_least("tau_max", self.tau_max, self.tau_min)


class FedLWS(Method):
    """For each layer: w <- gamma average, gamma = |w_t| / (|w_t| + tau |average - w_t|).

    tau = clamp(beta delta), with delta the clients' mean distance from their mean change.
    """

    name = "fedlws"
    Options = Options

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        average = weighted_sum(round.results, round.weights)
        for group in self.federation.groups:
            average[group] *= self._gamma(round, average, group)
        return self.server_step(round, average)

    def _gamma(self, round: Round, average: Tensor, group: slice) -> float:
        start = round.start[group]
        norm = float(torch.linalg.vector_norm(start))
        if norm == 0:
            return 1.0
        changes = round.results[:, group] - start
        delta = float(torch.linalg.vector_norm(changes - changes.mean(0), dim=1).mean())
        tau = min(max(self.options.beta * delta, self.options.tau_min), self.options.tau_max)
        return norm / (norm + tau * float(torch.linalg.vector_norm(average[group] - start)))
