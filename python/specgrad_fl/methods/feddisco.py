"""FedDisco: clients whose labels are far from uniform count for less in the average."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specgrad_fl.errors import ConfigError
from specgrad_fl.methods.base import Federation, Method, Round, at_least, one_of

DISTANCES = ("kl", "l1", "l2", "cos")
TARGETS = ("uniform", "test")


@dataclass(frozen=True)
class DiscoOptions:
    a: float = 0.5
    b: float = 0.1
    distance: str = "kl"
    target: str = "uniform"

    def __post_init__(self) -> None:
        at_least("a", self.a, 0)
        one_of("distance", self.distance, DISTANCES)
        one_of("target", self.target, TARGETS)


def discrepancy(labels: Tensor, target: Tensor, distance: str) -> Tensor:
    """How far each row of label shares is from ``target``.

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
    Options = DiscoOptions

    def __init__(self, options: DiscoOptions, federation: Federation) -> None:
        super().__init__(options, federation)
        histograms = federation.histograms.double()
        labels = histograms / histograms.sum(1, keepdim=True)
        classes = labels.shape[1]
        target = torch.full((classes,), 1 / classes, dtype=torch.float64)
        if options.target == "test":
            target = federation.test_histogram.double() / federation.test_histogram.sum()
            self._check_target(labels, target)
        self.distances = discrepancy(labels, target, options.distance)

    def _check_target(self, labels: Tensor, target: Tensor) -> None:
        """The KL divergence is infinite where a client holds what the target lacks."""
        missing = (labels.sum(0) > 0) & (target == 0)
        if self.options.distance == "kl" and missing.any():
            raise ConfigError(
                f"feddisco: target is 'test', and the test set lacks class "
                f"{int(missing.nonzero()[0])}, which clients hold; choose target=uniform or "
                "another distance"
            )

    def shares(self, round: Round) -> Tensor:
        distances = self.distances[round.clients]
        if self.options.distance == "kl" and distances.sum() > 0:
            distances = distances / distances.sum()
        raw = (round.weights - self.options.a * distances + self.options.b).clamp(min=0)
        return raw / raw.sum() if raw.sum() > 0 else round.weights
