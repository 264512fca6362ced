"""Alignment of clients: cosines of their updates or gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


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
        self._sizes: dict[str, int] = {}
        self._sum = torch.zeros(())

    def add(self, vectors: Mapping[str, Tensor]) -> None:
        """Take one client's update or gradient, by tensor name."""
        sizes = {name: vector.numel() for name, vector in vectors.items()}
        if self.clients and sizes != self._sizes:
            raise ValueError("clients must have the same tensors; this one has others")
        whole = torch.cat([vectors[name].detach().reshape(-1).float() for name in sorted(sizes)])
        norm = torch.linalg.vector_norm(whole, dtype=torch.float64)
        if norm == 0:
            raise ValueError("a client's vector is zero and has no direction; leave it out")
        self._sizes = sizes
        self._sum = self._sum.to(whole) + whole / norm.to(whole)
        self.clients += 1

    def mean(self) -> float:
        """Mean cosine over pairs of different clients."""
        if self.clients < 2:
            raise ValueError(f"{self.clients} client was added; a cosine needs two")
        energy = float(torch.linalg.vector_norm(self._sum, dtype=torch.float64)) ** 2
        return (energy - self.clients) / (self.clients * (self.clients - 1))
