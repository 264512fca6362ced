"""The spectral filter in a Flower client of one's own."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from specgrad_kernels import FilterPlan, FilterSpec

Function = TypeVar("Function", bound=Callable[..., Any])


def filtered(
    train: Function | None = None,
    *,
    method: str = "fft",
    ratio: float = 0.05,
    select: str = "auto",
) -> Any:
    """Filter the gradients of every optimizer step inside a training function.

    The function trains the ``nn.Module`` among its arguments, with any ``torch.optim`` optimizer
    made in it or given to it; just before each step the model's gradients are filtered in place.
    Outside the function nothing changes. Works with and without arguments:

    >>> @filtered(ratio=0.1)
    ... def train(model, batches):
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     for x in batches:
    ...         optimizer.zero_grad()
    ...         model(x).square().mean().backward()
    ...         optimizer.step()
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 2))
    >>> train(net, [torch.randn(4, 3, 8, 8)])
    """
    if train is None:
        return functools.partial(filtered, method=method, ratio=ratio, select=select)
    spec = FilterSpec(method, ratio)
    plans: weakref.WeakKeyDictionary[nn.Module, FilterPlan] = weakref.WeakKeyDictionary()

    @functools.wraps(train)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        model = _model(train, arguments, options)
        if model not in plans:
            plans[model] = FilterPlan.for_model(model, spec, select)
        with _Filtering(plans[model], model):
            return train(*arguments, **options)

    return wrapped


def _model(train: Callable[..., Any], arguments: Any, options: dict[str, Any]) -> nn.Module:
    """The one module among the arguments."""
    modules = [v for v in (*arguments, *options.values()) if isinstance(v, nn.Module)]
    if len(modules) != 1:
        raise TypeError(
            f"{getattr(train, '__name__', 'the training function')} was called with "
            f"{len(modules)} modules among its arguments; filtered needs one, the model to train"
        )
    return modules[0]


class _Filtering:
    """Filters before the steps of optimizers that hold the model's parameters."""

    def __init__(self, plan: FilterPlan, model: nn.Module) -> None:
        self._plan = plan
        self._parameters = {id(parameter) for parameter in model.parameters()}

    def __enter__(self) -> None:
        self._handle = register_optimizer_step_pre_hook(self._before)

    def __exit__(self, *exception: Any) -> None:
        self._handle.remove()

    def _before(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
        held = (id(p) for group in optimizer.param_groups for p in group["params"])
        if not any(parameter in self._parameters for parameter in held):
            return
        given = [v for v in arguments if v is not optimizer and v is not None]
        if given or options.get("closure") is not None:
            raise TypeError(
                "step(closure) computes gradients after they would be filtered; call backward "
                "yourself and step() without a closure"
            )
        self._plan.filter_grads_()
