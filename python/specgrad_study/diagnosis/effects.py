"""What filters do to clients' gradients: what they leave of disagreement, and of the mean gradient.

A share of disagreement alone says nothing about a filter: one that scales everything down removes
as much of it as one that aims well. So the share of the mean gradient is told with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from specgrad_fl.filters import Plan
from specgrad_fl.vectors import FlatModel
from torch import Tensor

WHOLE = ""


@dataclass(frozen=True)
class Effect:
    """What a filter leaves in its layers: shares of the energy before."""

    disagreement: float | None
    mean_gradient: float | None


class _Running:
    """Weighted mean of vectors and their squared distance from it, one vector at a time."""

    def __init__(self, length: int, device: torch.device) -> None:
        self.mean = torch.zeros(length, dtype=torch.float64, device=device)
        self.spread = 0.0
        self.weight = 0.0

    def add(self, weight: float, vector: Tensor) -> None:
        apart = vector - self.mean
        step = weight / (self.weight + weight)
        self.spread += self.weight * step * float(torch.dot(apart, apart))
        self.mean.add_(apart, alpha=step)
        self.weight += weight

    @property
    def signal(self) -> float:
        return float(torch.dot(self.mean, self.mean))


class Effects:
    """Takes the gradients that a model holds, client by client, through every filter.

    plans: filters of this model by label
    filtered: the layers in which disagreement and mean gradient are measured
    """

    def __init__(self, flat: FlatModel, plans: Mapping[str, Plan], filtered: Sequence[str]) -> None:
        named = dict(flat.model.named_parameters())
        self._flat = flat
        self._plans = plans
        self._layers = [named[name] for name in filtered]
        length = sum(layer.numel() for layer in self._layers)
        self._running = {label: _Running(length, flat.grads.device) for label in (WHOLE, *plans)}

    def _vector(self) -> Tensor:
        grads = [layer.grad for layer in self._layers if layer.grad is not None]
        return torch.cat([grad.reshape(-1) for grad in grads]).double()

    def add(self, weight: float) -> None:
        """Take the current gradients, which are the same afterwards."""
        before = self._flat.grads.clone()
        self._running[WHOLE].add(weight, self._vector())
        for label, plan in self._plans.items():
            plan.filter_grads_()
            self._running[label].add(weight, self._vector())
            self._flat.grads.copy_(before)

    def result(self) -> dict[str, Effect]:
        """By label what is left."""
        whole = self._running[WHOLE]
        return {
            label: Effect(_share(each.spread, whole.spread), _share(each.signal, whole.signal))
            for label, each in self._running.items()
            if label != WHOLE
        }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 and math.isfinite(whole) else None
