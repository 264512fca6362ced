"""Methods that change what clients do: FedProx, FedDyn, SCAFFOLD, FedCM and FedSAM."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specgrad_fl.methods.base import Local, Method, Round, Vectors, option, weighted_sum


@dataclass(frozen=True)
class FedProxOptions:
    mu: float = option(0.1, low=0)


class FedProx(Method):
    """v = u + mu (w - w_t)."""

    name = "fedprox"
    Options = FedProxOptions

    def correction(self, local: Local) -> Tensor:
        return (local.w - local.start).mul_(self.options.mu)

    def pull(self, client: int) -> float:
        return self.options.mu


@dataclass(frozen=True)
class FedDynOptions:
    alpha: float = option(0.1, low=0)


class FedDyn(Method):
    """Best with a learning rate that hardly decays: h never does."""

    name = "feddyn"
    Options = FedDynOptions
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


class Scaffold(Method):
    """c_k is an average of gradients that were filtered already, so it is not filtered again."""

    name = "scaffold"
    client_vectors = ("c_k",)
    needs_plain_steps = True
    sent_vectors = ("c",)
    down = 2
    up = 2

    def correction(self, local: Local) -> Tensor:
        return local.sent["c"] - local.state["c_k"]

    def finish(self, local: Local) -> None:
        if local.lr_sum == 0:
            return
        local.state["c_k"].sub_(local.sent["c"]).add_(local.start - local.w, alpha=1 / local.lr_sum)

    def shares(self, round: Round) -> Tensor:
        return round.uniform

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        # the change of c_k is (w_t - w_k) / lr_sum_k - c, which the server can form itself
        change = weighted_sum(round.applied(server["c"]), round.uniform) - server["c"]
        server["c"] = server["c"] + change * (len(round.clients) / self.federation.clients)
        return super().aggregate(round, server)


@dataclass(frozen=True)
class FedCMOptions:
    alpha: float = option(0.1, low=0, high=1)


class FedCM(Method):
    """v = alpha u + (1 - alpha) m;  m <- -mean(Delta_k / sum of learning rates).

    m is zero in the first round, which therefore runs at alpha times the learning rate.
    """

    name = "fedcm"
    Options = FedCMOptions
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


@dataclass(frozen=True)
class FedSAMOptions:
    rho: float = option(0.1, low=0)
    filter_ascent: bool = False


class FedSAM(Method):
    """u = filter(gradient at w + rho g/|g|), with g the gradient at w on the same batch."""

    name = "fedsam"
    Options = FedSAMOptions

    def gradient(self, local: Local) -> Tensor:
        loss = local.backward()
        with torch.no_grad():
            if self.options.filter_ascent:
                local.filter_()
            step = self.options.rho / (torch.linalg.vector_norm(local.g) + 1e-7)
            # restored by copy: subtracting the step again would not give the same bits
            here = local.w.clone()
            local.w.add_(local.g * step)
        local.backward()
        with torch.no_grad():
            local.w.copy_(here)
        return loss
