"""The same trainer on many machines: clients on Flower's SuperNodes.

``specgrad-fl train --engine flower`` needs nothing from here. Whoever has a Flower application
already adds the filter to its training function with :func:`filtered`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


__all__ = ["filtered"]


def filtered(
    train: Callable[..., Any] | None = None,
    *,
    method: str = "fft",
    ratio: float = 0.05,
    select: str = "auto",
) -> Any:
    """Filter the gradients of every optimizer step inside a training function.

    The function trains the ``nn.Module`` among its arguments, with any ``torch.optim`` optimizer
    made in it or given to it; just before each step the gradients it uses are filtered in place,
    as ``FilterPlan.attach`` does. Outside the function nothing changes. Works with and without
    arguments:

    >>> import torch
    >>> from torch import nn
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
    from specgrad_kernels import FilterPlan, FilterSpec
    from specgrad_kernels.hooks import filter_all_steps

    spec = FilterSpec(method, ratio)
    plans: weakref.WeakKeyDictionary[nn.Module, FilterPlan] = weakref.WeakKeyDictionary()

    @functools.wraps(train)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        model = _model(train, arguments, options)
        if model not in plans:
            plans[model] = FilterPlan.for_model(model, spec, select)
        with filter_all_steps(plans[model]):
            return train(*arguments, **options)

    return wrapped


def _model(train: Callable[..., Any], arguments: Any, options: dict[str, Any]) -> nn.Module:
    """The one module with parameters among the arguments; a loss usually has none."""
    from torch import nn

    given = (v for v in (*arguments, *options.values()) if isinstance(v, nn.Module))
    modules = {id(v): v for v in given if next(v.parameters(), None) is not None}
    if len(modules) != 1:
        raise TypeError(
            f"{getattr(train, '__name__', 'the training function')} was called with "
            f"{len(modules)} models (modules with parameters) among its arguments, and filtered "
            "needs one; in a (message, context) handler, put the training loop into a function "
            "that takes the model, decorate that one and call it from the handler"
        )
    return next(iter(modules.values()))
