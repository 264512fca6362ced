"""The bundled methods besides FedAvg: FedProx, FedDyn, SCAFFOLD, FedCM and FedSAM change what
clients do; FedDisco, FedAWA and FedLWS how the server averages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specgrad_fl.errors import ConfigError
from specgrad_fl.methods.base import (
    Federation,
    Local,
    Method,
    Round,
    Vectors,
    option,
)


class FedProx(Method):
    """v = u + mu (w - w_t)."""

    name = "fedprox"
    stacks = True

    @dataclass(frozen=True)
    class Options:
        mu: float = option(0.1, low=0)

    def correction(self, local: Local) -> Tensor:
        return (local.w - local.start).mul_(self.options.mu)

    def pull(self, client: int | Tensor) -> float:
        return self.options.mu


class FedDyn(Method):
    """Best with a learning rate that hardly decays: h never does."""

    name = "feddyn"
    stacks = True
    client_vectors = ("h",)

    @dataclass(frozen=True)
    class Options:
        alpha: float = option(0.1, low=0)

    def server_state(self) -> Vectors:
        return {"h": torch.zeros(self.federation.size)}

    def pull(self, client: int | Tensor) -> Tensor:
        """alpha, weaker for a client with more than its share of the samples."""
        sizes = self.federation.sizes
        share = sizes[client].double() * self.federation.clients / float(sizes.sum())
        return self.options.alpha / share

    def correction(self, local: Local) -> Tensor:
        pull = self.pull(local.client).to(local.w.dtype)
        # of one client a plain number: a copy of it to the GPU would be waited for
        factor = pull.to(local.w.device) if pull.dim() else float(pull)
        return (local.w - local.start).add_(local.state["h"]).mul_(factor)

    def finish(self, local: Local) -> None:
        local.state["h"].add_(local.w - local.start)

    def shares(self, round: Round) -> Tensor:
        return round.uniform

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        average = round.average(round.results, self.shares(round))
        # over all clients, not the active ones: the mean of h_k with the never-seen at zero
        active_share = len(round.clients) / self.federation.clients
        server["h"] = server["h"] + (average - round.start) * active_share
        return self.server_step(round, average) + server["h"]


class Scaffold(Method):
    """c_k is an average of gradients that were filtered already, so it is not filtered again."""

    name = "scaffold"
    stacks = True
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
        change = round.average(round.applied(server["c"]), round.uniform) - server["c"]
        server["c"] = server["c"] + change * (len(round.clients) / self.federation.clients)
        return super().aggregate(round, server)


class FedCM(Method):
    """v = alpha u + (1 - alpha) m;  m <- -mean(Delta_k / sum of learning rates).

    m is zero in the first round, which therefore runs at alpha times the learning rate.
    """

    name = "fedcm"
    stacks = True
    needs_plain_steps = True
    sent_vectors = ("m",)
    down = 2

    @dataclass(frozen=True)
    class Options:
        alpha: float = option(0.1, low=0, high=1)

    @property
    def scale(self) -> float:
        return self.options.alpha

    def correction(self, local: Local) -> Tensor:
        return local.sent["m"] * (1 - self.options.alpha)

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        server["m"] = round.average(round.applied(server["m"]), round.uniform)
        return super().aggregate(round, server)


class FedSAM(Method):
    """u = filter(gradient at w + rho g/|g|), with g the gradient at w on the same batch."""

    name = "fedsam"
    stacks = True

    @dataclass(frozen=True)
    class Options:
        rho: float = option(0.1, low=0)
        filter_ascent: bool = False

    def gradient(self, local: Local) -> Tensor:
        loss = local.backward()
        with torch.no_grad():
            if self.options.filter_ascent:
                local.filter_()
            norm = torch.linalg.vector_norm(local.g, dim=-1, keepdim=True)
            step = self.options.rho / (norm + 1e-7)
            # restored by copy: subtracting the step again would not give the same bits
            here = local.w.clone()
            local.w.add_(local.g * step)
        local.backward()
        with torch.no_grad():
            local.w.copy_(here)
        return loss


def discrepancy(labels: Tensor, target: Tensor, distance: str) -> Tensor:
    """Distance of each row of label shares from ``target``.

    >>> target = torch.tensor([0.5, 0.5])
    >>> discrepancy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), target, "l1").tolist()
    [0.0, 1.0]
    """
    if distance == "kl":
        known = target > 0  # a class that nobody holds either: 0 log 0 is 0
        return torch.special.xlogy(labels[:, known], labels[:, known] / target[known]).sum(1)
    if distance == "cos":
        return 1 - F.cosine_similarity(labels, target[None], dim=1)
    return torch.linalg.vector_norm(labels - target, ord=int(distance[1]), dim=1)


class FedDisco(Method):
    """Weights proportional to max(0, p_k - a D_k + b)."""

    name = "feddisco"

    @dataclass(frozen=True)
    class Options:
        a: float = option(0.5, low=0)
        b: float = 0.1
        distance: str = option("kl", choices=("kl", "l1", "l2", "cos"))
        target: str = option("uniform", choices=("uniform", "test"))

    def __init__(self, options: Options, federation: Federation) -> None:
        super().__init__(options, federation)
        histograms = federation.histograms.double()
        labels = histograms / histograms.sum(1, keepdim=True)
        classes = labels.shape[1]
        target = torch.full((classes,), 1 / classes, dtype=torch.float64)
        if options.target == "test":
            target = federation.test_histogram.double() / federation.test_histogram.sum()
        # the KL divergence is infinite where a client holds what the target lacks
        missing = (labels.sum(0) > 0) & (target == 0)
        if options.distance == "kl" and missing.any():
            raise ConfigError(
                f"feddisco: target is 'test', and the test set lacks class "
                f"{int(missing.nonzero()[0])}, which clients hold; choose target=uniform or "
                "another distance"
            )
        self.distances = discrepancy(labels, target, options.distance)

    def shares(self, round: Round) -> Tensor:
        distances = self.distances[round.clients]
        if self.options.distance == "kl" and distances.sum() > 0:
            distances = distances / distances.sum()
        raw = (round.weights - self.options.a * distances + self.options.b).clamp(min=0)
        return raw / raw.sum() if raw.sum() > 0 else round.weights


class FedAWA(Method):
    """Shares are softmax(theta) over the active clients; a step on theta acts next time.

    theta starts at the size fractions and is kept by client; ``slot_parity`` keeps it by position
    among the active ones, as the original code does.
    """

    name = "fedawa"

    @dataclass(frozen=True)
    class Options:
        server_epochs: int = option(1, low=0)
        optimizer: str = option("adam", choices=("adam", "sgd"))
        server_lr: float = option(1e-3, low=0)
        reg_distance: str = option("cos", choices=("cos", "euc"))
        gamma: float = 1.0
        slot_parity: bool = False

    def server_state(self) -> Vectors:
        sizes = self.federation.sizes.double()
        return {"theta": sizes / sizes.sum()}

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        count = len(round.clients)
        slots = torch.arange(count) if self.options.slot_parity else round.clients
        theta = server["theta"][slots].clone().requires_grad_()
        shares = torch.softmax(theta, 0).detach()
        self._learn(theta, round)
        server["theta"] = server["theta"].index_copy(0, slots, theta.detach())
        average = round.average(round.results, shares * self.options.gamma)
        return self.server_step(round, average)

    def _learn(self, theta: Tensor, round: Round) -> None:
        changes = round.results - round.start
        if self.options.reg_distance == "cos":
            distances = 1 - F.cosine_similarity(round.results, round.start[None], dim=1)
        else:
            distances = changes.square().mean(1)
        optimizer: torch.optim.Optimizer
        if self.options.optimizer == "adam":
            optimizer = torch.optim.Adam([theta], lr=self.options.server_lr, betas=(0.5, 0.999))
        else:
            optimizer = torch.optim.SGD([theta], lr=0.01, momentum=0.9, weight_decay=5e-4)
        for _ in range(self.options.server_epochs):
            shares = torch.softmax(theta, 0)
            spread = torch.linalg.vector_norm(changes - shares.float() @ changes, dim=1)
            loss = (shares * distances).sum() + (shares * spread).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class FedLWS(Method):
    """For each layer: w <- gamma average, gamma = |w_t| / (|w_t| + tau |average - w_t|).

    tau = clamp(beta delta), with delta the clients' mean distance from their mean change.
    """

    name = "fedlws"

    @dataclass(frozen=True)
    class Options:
        beta: float = option(0.03, low=0)
        tau_min: float = option(0.01, low=0)
        tau_max: float = option(0.2, low=0)

        def __post_init__(self) -> None:
            if self.tau_max < self.tau_min:
                raise ValueError(f"tau_max is {self.tau_max}; the least is {self.tau_min}, tau_min")

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        average = round.average(round.results, round.weights)
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


METHODS = (FedProx, FedDyn, Scaffold, FedCM, FedSAM, FedDisco, FedAWA, FedLWS)
