"""Following a model's ``forward`` symbolically, without a trace of it left in the model."""

from __future__ import annotations

import copy
import inspect
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from specgrad_kernels.flow import LAYERS, is_scale

_HOOKS = [name for name in vars(nn.Module()) if "hooks" in name]
_CONTAINERS = (list, set, dict, OrderedDict, defaultdict, deque)
# A trace replaces methods of nn.Module, so there can be only one at a time.
_TRACING = threading.Lock()


def stand_ins(root: nn.Module) -> dict[int, nn.Module]:
    """For every module inside ``root``, by its identity, one that may be run in its place.

    It has the same parameters, but no hooks, and what its ``forward`` stores stays with it.

    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> twin = stand_ins(model)[id(model)]
    >>> twin[0].weight is model[0].weight, twin[0] is model[0]
    (True, False)
    """
    # a script module keeps its state where no attribute of it can be copied
    modules = [m for m in root.modules() if not isinstance(m, torch.jit.ScriptModule)]
    twins: dict[int, Any] = {id(module): object.__new__(type(module)) for module in modules}
    for module in modules:
        state = {name: _twin(value, twins) for name, value in vars(module).items()}
        twins[id(module)].__dict__.update(state | {name: OrderedDict() for name in _HOOKS})
    return twins


def _twin(value: Any, twins: dict[int, Any]) -> Any:
    """The value with all state in it copied; ``twins`` holds what was copied before."""
    if id(value) in twins:
        return twins[id(value)]
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and not is_lazy(value):
        twins[id(value)] = value.detach().clone()
    elif isinstance(value, MethodType):
        return MethodType(value.__func__, _twin(value.__self__, twins))
    elif type(value) in _CONTAINERS:
        twin = twins[id(value)] = copy.copy(value)
        places = value if isinstance(value, dict) else range(len(value))
        for place in () if isinstance(value, set) else places:
            twin[place] = _twin(value[place], twins)
    return twins.get(id(value), value)


class _Tracer(fx.Tracer):
    """Follows one module's forward; a submodule it cannot follow stays one opaque call."""

    def __init__(self, twins: dict[int, nn.Module]) -> None:
        super().__init__()
        self.twins = twins
        self.thread = threading.get_ident()
        self.opaque: list[str] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            isinstance(m, LAYERS) or is_scale(m) or super().is_leaf_module(m, module_qualified_name)
        )

    # While a trace runs, these two are called for every module of the process.
    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        if id(m) in self.twins:  # reached by a way that was not copied, such as a closure
            return self.twins[id(m)](*args, **kwargs)
        followed, stack = len(self.graph.nodes), self.module_stack.copy()
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            # any forward may fail in any way on symbols; what it recorded until then is void
            for node in reversed(list(self.graph.nodes)[followed:]):
                self.graph.erase_node(node)
            self.module_stack = stack
            self.opaque.append(self.path_of_module(m))
            return self.create_proxy("call_module", self.opaque[-1], args, kwargs)


def trace(module: nn.Module) -> tuple[fx.Graph | None, list[nn.Module]]:
    """The graph of ``forward``, and the opaque submodules; or None, and the module itself."""
    try:
        twins = stand_ins(module)
        tracer = _Tracer(twins)
        root = twins.get(id(module), module)
        arguments = inspect.signature(root.forward).parameters.values()
        defaults = {a.name: a.default for a in arguments if a.default is not a.empty}
        with _TRACING:
            graph = tracer.trace(root, defaults or None)
    except Exception:
        # the caller then follows the children, and judges the module itself by its shapes
        return None, [module]
    return graph, [module.get_submodule(path) for path in tracer.opaque]
