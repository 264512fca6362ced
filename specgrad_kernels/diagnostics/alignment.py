"""How far clients point the same way: cosines of their updates or gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def _energy(vectors: Mapping[str, Tensor]) -> float:
    return sum(float(torch.dot(v.double(), v.double())) for v in vectors.values())


class Cosines:
    """Mean cosine between different clients, over the whole model.

    Clients come one at a time: unit vectors ``u_k`` of ``K`` clients have the mean cosine
    ``(|sum u_k|^2 - K) / (K (K - 1))``, so their sum is all that is kept.

    >>> meter = Cosines()
    >>> for update in ([1.0, 0.0], [0.0, 2.0], [3.0, 0.0]):
    ...     meter.add({"w": torch.tensor(update)})
    >>> round(meter.mean(), 4)                       # cosines 0, 1, 0
    0.3333
    """

    def __init__(self) -> None:
        self.clients = 0
        self._sum: dict[str, Tensor] = {}

    def add(self, vectors: Mapping[str, Tensor]) -> None:
        """Take one client's update or gradient, by tensor name."""
        flat = {name: vector.detach().reshape(-1) for name, vector in vectors.items()}
        if self._sum and {n: v.numel() for n, v in flat.items()} != {
            n: v.numel() for n, v in self._sum.items()
        }:
            raise ValueError("clients must have the same tensors; this one has others")
        norm = _energy(flat) ** 0.5
        if norm == 0:
            raise ValueError("a client's vector is zero and has no direction; leave it out")
        for name, vector in flat.items():
            if name not in self._sum:
                self._sum[name] = torch.zeros_like(vector, dtype=torch.float32)
            self._sum[name].add_(vector.float(), alpha=1 / norm)
        self.clients += 1

    def mean(self) -> float:
        """Mean cosine over pairs of different clients."""
        if self.clients < 2:
            raise ValueError(f"{self.clients} client was added; a cosine needs two")
        return (_energy(self._sum) - self.clients) / (self.clients * (self.clients - 1))
