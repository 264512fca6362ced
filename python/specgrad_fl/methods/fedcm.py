"""FedCM: clients step along a mix of their gradient and the last round's mean direction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specgrad_fl.methods.base import Local, Method, Round, Vectors, between, weighted_sum


@dataclass(frozen=True)
class Options:
    alpha: float = 0.1

    def __post_init__(self) -> None:
        between("alpha", self.alpha, 0, 1)


class FedCM(Method):
    """v = alpha u + (1 - alpha) m;  m <- -mean(Delta_k / sum of learning rates).

    m is zero in the first round, which therefore runs at alpha times the learning rate.
    """

    name = "fedcm"
    Options = Options
    needs_plain_steps = True
    sent_vectors = ("m",)
    down = 2

    @property
    def scale(self) -> float:
        return self.options.alpha

    def correction(self, local: Local) -> Tensor:
        return local.sent["m"] * (1 - self.options.alpha)

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        server["m"] = weighted_sum(round.applied(server["m"]), round.uniform)
        return super().aggregate(round, server)
