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

from specgrad_study.diagnosis.disagreement import RunningMean

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
        self._weight = 0.0
        self._running: dict[str, RunningMean] = {}

    def _take(self, label: str, weight: float) -> None:
        vector = torch.cat([grad.reshape(-1) for grad in _gradients(self._layers)])
        running = self._running.setdefault(label, RunningMean(vector))
        step = weight / (self._weight + weight)
        running.add(self._weight * step, step, vector)

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
        self._weight += weight

    def result(self) -> dict[str, Effect]:
        """Shares left, by label."""
        whole = self._running[WHOLE]
        return {
            label: Effect(_share(each.total, whole.total), _share(each.signal, whole.signal))
            for label, each in self._running.items()
            if label != WHOLE
        }


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 and math.isfinite(whole) else None
