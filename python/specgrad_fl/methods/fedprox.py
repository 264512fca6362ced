"""FedProx: a proximal term holds clients near the weights they were sent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specgrad_fl.methods.base import Local, Method, at_least


@dataclass(frozen=True)
class Options:
    mu: float = 0.1

    def __post_init__(self) -> None:
        at_least("mu", self.mu, 0)


class FedProx(Method):
    """v = u + mu (w - w_t)."""

    name = "fedprox"
    Options = Options

    def correction(self, local: Local) -> Tensor:
        return (local.w - local.start).mul_(self.options.mu)

    def pull(self, client: int) -> float:
        return self.options.mu
