"""The filter that a configuration asks for: one kind, or two that work together.

``a+b`` applies a, then b. ``a-b`` removes what a removes but for what b would remove: of a gradient
without b's share, filtered by a, with that share put back.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, suggest
from specgrad_kernels import FilterPlan, FilterSpec, select_layers


class LoopPlan:
    """rFFT, mask, inverse rFFT of each gradient, in its own precision.

    >>> weight = nn.Parameter(torch.zeros(8, 3, 3, 3))
    >>> weight.grad = torch.ones_like(weight)
    >>> LoopPlan({"conv.weight": weight}, FilterSpec("fft", 0.05)).filter_grads_()
    >>> float(weight.grad.abs().max()) < 1e-6
    True
    """

    NAME = "loop"

    def __init__(self, parameters: Mapping[str, nn.Parameter], spec: FilterSpec) -> None:
        if spec.method != "fft" or spec.order is not None:
            raise ValueError(
                f"backend 'loop' has the filter fft in the tensor's own order alone, and "
                f"{spec.method!r} with order {spec.order!r} was asked for; choose another backend"
            )
        spec.check_count(len(parameters))
        self.spec = spec
        self.names = list(parameters)
        self._layers = [(p, spec.cutoff(p.numel(), i)) for i, p in enumerate(parameters.values())]

    @torch.no_grad()
    def filter_grads_(self) -> None:
        """Filter the gradients in place."""
        for parameter, cutoff in self._layers:
            grad = parameter.grad
            if grad is None or cutoff == 0:
                continue
            spectrum = torch.fft.rfft(grad.reshape(-1))
            spectrum[:cutoff] = 0
            grad.copy_(torch.fft.irfft(spectrum, n=grad.numel()).view(grad.shape))


# fields of a spec that have a setting of their own
SETTINGS = ("method", "ratio", "order")
FREE = tuple(f.name for f in dataclasses.fields(FilterSpec) if f.name not in SETTINGS)
OF_ALL = ("order", "backend")  # options that no kind has for itself


class PairPlan:
    """Two filters of the same layers.

    subtract: keep the band of the second filter
    """

    def __init__(self, first: FilterPlan, second: FilterPlan, subtract: bool) -> None:
        self.first, self.second, self.subtract = first, second, subtract
        self.names, self.spec = first.names, first.spec

    def filter_grads_(self, given: Sequence[Tensor | None] | None = None) -> None:
        """Filter the layers' ``.grad``, or gradients given in their order, in place."""
        if not self.subtract:
            self.first.filter_grads_(given)
            self.second.filter_grads_(given)
            return
        listed = [p.grad for p in self.first.parameters] if given is None else given
        grads = [grad for grad in listed if grad is not None]
        removed = [grad.clone() for grad in grads]
        self.second.filter_grads_(given)
        for share, grad in zip(removed, grads, strict=True):
            share.sub_(grad)
        self.first.filter_grads_(given)
        for share, grad in zip(removed, grads, strict=True):
            grad.add_(share)


Plan = FilterPlan | LoopPlan | PairPlan


def filter_plan(model: nn.Module, config: Config, batch_dims: int = 0) -> Plan | None:
    """The plan that the configuration asks for; ``batch_dims=1`` for stacks of gradients."""
    if config.filter == "none":
        return None
    kinds = re.split("[+-]", config.filter)
    try:
        taken = select_layers(model, config.filter_select).taken
        ratio = layer_ratios(config, taken) if config.filter_ratios else config.ratio
        order = config.filter_order or None
        given = {k: v for k, v in config.filter_options.items() if k not in OF_ALL}
        options = {kind: options_of(kind, given, kinds) for kind in kinds}
        specs = [FilterSpec(kind, ratio, order=order, **options[kind]) for kind in kinds]
        specs = [dataclasses.replace(s, batch_dims=s.batch_dims + batch_dims) for s in specs]
        if config.filter_backend == LoopPlan.NAME and len(specs) == 1:
            return LoopPlan(taken, specs[0])
        plans = [FilterPlan(taken.items(), s, backend=config.filter_backend) for s in specs]
    except (ValueError, RuntimeError, re.error) as error:
        raise ConfigError(f"filter {config.filter!r} cannot be used: {error}") from error
    if not plans[0].names:
        raise ConfigError(
            f"filter_select {config.filter_select!r} takes no layer of {config.model}; choose "
            "another, or filter 'none'"
        )
    return plans[0] if len(plans) == 1 else PairPlan(plans[0], plans[1], "-" in config.filter)


def options_of(kind: str, options: Mapping[str, Any], kinds: Collection[str]) -> dict[str, Any]:
    """The options of one kind: ``window`` is for all kinds of a filter, ``lap.window`` for lap.

    >>> options_of("lap", {"lap.window": 25, "boundary": "circular"}, ["lap", "fft"])
    {'window': 25, 'boundary': 'circular'}
    """
    chosen = {}
    for key, value in options.items():
        owner, _, name = key.rpartition(".")
        if owner and owner not in kinds:
            raise ConfigError(
                f"--filter-option {key} is for {owner}, and the filter is {'-'.join(kinds)}; "
                f"{suggest(owner, kinds)}"
            )
        if name not in FREE:
            raise ConfigError(f"a filter has no option {name!r}; {suggest(name, FREE + OF_ALL)}")
        users = [each for each in kinds if name in FilterSpec.options_of(each)]
        if owner == kind or (not owner and (kind in users or not users)):
            chosen[name] = value
    return chosen


def layer_ratios(config: Config, names: Collection[str]) -> list[float]:
    """The ratio of each filtered layer, in their order."""
    for name in config.filter_ratios:
        if name not in names:
            raise ConfigError(
                f"filter_ratios names {name!r}, which is not a filtered layer of {config.model}; "
                f"{suggest(name, names)}"
            )
    return [config.filter_ratios.get(name, config.ratio) for name in names]
