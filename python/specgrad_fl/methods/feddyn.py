"""FedDyn: a dynamic regulariser whose fixed points are those of the global objective.

With h_k the sum of what client k ever changed, and h their mean over *all* clients:
v = u + a_k (h_k + w - w_t), h_k <- h_k + Delta_k, w <- mean_active(w_k) + h.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specgrad_fl.methods.base import Local, Method, Round, Vectors, at_least, weighted_sum


@dataclass(frozen=True)
class Options:
    alpha: float = 0.1

    def __post_init__(self) -> None:
        at_least("alpha", self.alpha, 0)


class FedDyn(Method):
    """Best with a learning rate that hardly decays: h never does."""

    name = "feddyn"
    Options = Options
    client_vectors = ("h",)

    def server_state(self) -> Vectors:
        return {"h": torch.zeros(self.federation.size)}

    def pull(self, client: int) -> float:
        """alpha, weaker for a client with more than its share of the samples."""
        sizes = self.federation.sizes
        share = float(sizes[client]) * self.federation.clients / float(sizes.sum())
        return self.options.alpha / share

    def correction(self, local: Local) -> Tensor:
        return (local.w - local.start).add_(local.state["h"]).mul_(self.pull(local.client))

    def finish(self, local: Local) -> None:
        local.state["h"].add_(local.w - local.start)

    def shares(self, round: Round) -> Tensor:
        return round.uniform

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        average = weighted_sum(round.results, self.shares(round))
        # over all clients, not the active ones: the mean of h_k with the never-seen at zero
        active_share = len(round.clients) / self.federation.clients
        server["h"] = server["h"] + (average - round.start) * active_share
        return self.server_step(round, average) + server["h"]
