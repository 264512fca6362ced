"""FedAWA: the server learns the clients' weights in the average from what they changed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specgrad_fl.methods.base import Method, Round, Vectors, at_least, one_of, weighted_sum


@dataclass(frozen=True)
class Options:
    server_epochs: int = 1
    optimizer: str = "adam"
    server_lr: float = 1e-3
    reg_distance: str = "cos"
    gamma: float = 1.0
    slot_parity: bool = False

    def __post_init__(self) -> None:
        at_least("server_epochs", self.server_epochs, 0)
        at_least("server_lr", self.server_lr, 0)
        one_of("optimizer", self.optimizer, ("adam", "sgd"))
        one_of("reg_distance", self.reg_distance, ("cos", "euc"))


class FedAWA(Method):
    """Shares are softmax(theta) over the active clients; a step on theta acts next time.

    theta starts at the size fractions and is kept by client; ``slot_parity`` keeps it by position
    among the active ones, as the original code does.
    """

    name = "fedawa"
    Options = Options

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
        average = weighted_sum(round.results, shares * self.options.gamma)
        return self.server_step(round, average)

    def _learn(self, theta: Tensor, round: Round) -> None:
        changes = round.results - round.start
        if self.options.reg_distance == "cos":
            distances = 1 - F.cosine_similarity(round.results, round.start[None], dim=1)
        else:
            distances = changes.square().mean(1)
        optimizer = self._optimizer(theta)
        for _ in range(self.options.server_epochs):
            shares = torch.softmax(theta, 0)
            spread = torch.linalg.vector_norm(changes - shares.float() @ changes, dim=1)
            loss = (shares * distances).sum() + (shares * spread).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def _optimizer(self, theta: Tensor) -> torch.optim.Optimizer:
        if self.options.optimizer == "adam":
            return torch.optim.Adam([theta], lr=self.options.server_lr, betas=(0.5, 0.999))
        return torch.optim.SGD([theta], lr=0.01, momentum=0.9, weight_decay=5e-4)
