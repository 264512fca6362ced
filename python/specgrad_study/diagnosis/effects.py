"""Shares of disagreement and of the mean gradient that filters leave.

A share of disagreement alone says nothing about a filter: one that scales everything down removes
as much of it as one that aims well. So the share of the mean gradient is told with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

WHOLE = ""


class Filtering(Protocol):
    """A filter of some layers: a ``FilterPlan``, or what the trainer makes of two."""

    names: list[str]

    def filter_grads_(self) -> None: ...


@dataclass(frozen=True)
class Effect:
    """Shares of the energy that a filter leaves in its layers."""

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
    """Takes the ``.grad`` of parameters, client by client, through every filter.

    plans: filters of these parameters by label
    parameters: by name
    filtered: names of those in which disagreement and mean gradient are measured

    A mean in float64 is kept for every filter.

    >>> from specgrad_kernels import FilterPlan, FilterSpec
    >>> weight = nn.Parameter(torch.zeros(8, 16))
    >>> plan = FilterPlan([("weight", weight)], FilterSpec("centralize"))
    >>> effects = Effects({"centralize": plan}, {"weight": weight}, ["weight"])
    >>> for mean in (1.0, 2.0):                     # clients that disagree about means alone
    ...     weight.grad = torch.full((8, 16), mean)
    ...     effects.add(1.0)
    >>> effects.result()
    {'centralize': Effect(disagreement=0.0, mean_gradient=0.0)}
    """

    def __init__(
        self,
        plans: Mapping[str, Filtering],
        parameters: Mapping[str, nn.Parameter],
        filtered: Collection[str],
    ) -> None:
        self._plans = plans
        self._layers = [parameters[name] for name in filtered]
        changed = {*filtered, *(name for plan in plans.values() for name in plan.names)}
        self._changed = [parameters[name] for name in sorted(changed)]
        length, device = sum(layer.numel() for layer in self._layers), self._layers[0].device
        self._running = {label: _Running(length, device) for label in (WHOLE, *plans)}

    def _take(self, label: str, weight: float) -> None:
        vector = torch.cat([grad.reshape(-1) for grad in _gradients(self._layers)]).double()
        self._running[label].add(weight, vector)

    def add(self, weight: float) -> None:
        """Take the current gradients, which are the same afterwards."""
        gradients = _gradients(self._changed)
        before = [gradient.clone() for gradient in gradients]
        self._take(WHOLE, weight)
        for label, plan in self._plans.items():
            try:
                plan.filter_grads_()
            except ValueError as error:
                raise ValueError(f"the filter {label!r} cannot be tried: {error}") from error
            self._take(label, weight)
            for gradient, old in zip(gradients, before, strict=True):
                gradient.copy_(old)

    def result(self) -> dict[str, Effect]:
        """Shares left, by label."""
        whole = self._running[WHOLE]
        return {
            label: Effect(_share(each.spread, whole.spread), _share(each.signal, whole.signal))
            for label, each in self._running.items()
            if label != WHOLE
        }


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 and math.isfinite(whole) else None
