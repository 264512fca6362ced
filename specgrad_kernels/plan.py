"""FilterPlan: a spec bound to the layers of a model, decided once and used every step."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from specgrad_kernels import dispatch, hooks, ops
from specgrad_kernels.backends import Backend, choose
from specgrad_kernels.layers import Selector, aligned, select_layers
from specgrad_kernels.layout import signal_shape
from specgrad_kernels.spec import FilterSpec


@dataclass(frozen=True)
class LayerPlan:
    """How one layer is filtered.

    error_bound: largest error of any gradient, relative to that gradient's norm.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    d: int
    cutoff: int
    strategy: str
    error_bound: float
    workspace_bytes: int


class FilterPlan:
    """Filters the gradients of the selected layers of one model.

    >>> import torch
    >>> from specgrad_kernels import FilterPlan, FilterSpec
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Flatten(),
    ...                             torch.nn.Linear(576, 10))
    >>> plan = FilterPlan.for_model(model, FilterSpec(ratio=0.05))
    >>> model(torch.randn(2, 3, 8, 8)).sum().backward()
    >>> plan.filter_grads_()
    >>> plan.names
    ['0.weight']
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        spec: FilterSpec | None = None,
        *,
        backend: str = "auto",
    ) -> None:
        named = list(named_parameters)
        self.spec = spec or FilterSpec()
        self.spec.check_count(len(named))
        self.backend = backend
        self.names = [name for name, _ in named]
        self._shapes = [tuple(parameter.shape) for _, parameter in named]
        self._parameters: list[nn.Parameter] | None = [parameter for _, parameter in named]
        self._choose_backend()  # one that cannot filter these is refused now

    @classmethod
    def for_model(
        cls,
        model: nn.Module,
        spec: FilterSpec | None = None,
        select: Selector = "auto",
        *,
        backend: str = "auto",
    ) -> FilterPlan:
        """A plan for the layers that ``select_layers(model, select)`` takes."""
        return cls(select_layers(model, select).taken.items(), spec, backend=backend)

    def _refuse_meta(self) -> None:
        """Giving a model of meta tensors memory replaces its parameters, and the plan has none."""
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.is_meta:
                raise RuntimeError(
                    f"the plan holds {name} as the meta tensor it was made with; call "
                    "plan.bind(model) once the model has memory"
                )

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The filtered parameters, in the order of ``names``."""
        if self._parameters is None:
            raise RuntimeError(
                "this plan was unpickled and knows its layers by name only; "
                "call plan.bind(model) first"
            )
        return self._parameters

    def bind(self, model: nn.Module) -> FilterPlan:
        """Use the parameters of ``model`` that have this plan's names and shapes."""
        own = dict(model.named_parameters())
        for name, shape in zip(self.names, self._shapes, strict=True):
            if name not in own or tuple(own[name].shape) != shape:
                found = tuple(own[name].shape) if name in own else "no such parameter"
                raise ValueError(f"the plan filters {name} of shape {shape}; the model has {found}")
        self._parameters = [own[name] for name in self.names]
        return self

    def _choose_backend(self) -> Backend:
        device = self.parameters[0].device if self.parameters else torch.device("cpu")
        return choose(self.backend, self.spec, device)

    def filter_grads_(self, grads: Sequence[Tensor | None] | None = None) -> None:
        """Filter the layers' ``.grad``, or ``grads`` given in the plan's order, in place."""
        if is_compiling():
            ops.trace(self._listed(grads), self.spec.text, self.backend)
            return
        parameters = self._parameters
        if grads is None and parameters:
            present = [grad for each in parameters if (grad := each.grad) is not None]
            if len(present) == len(parameters) and not present[0].is_meta:
                dispatch.run(present, self.spec, self.backend)
                return
        ops.apply(self._listed(grads), self.spec, self.backend)

    def _listed(self, grads: Sequence[Tensor | None] | None) -> Sequence[Tensor | None]:
        """The gradients in the plan's order, some of them missing."""
        if grads is None:
            self._refuse_meta()
            return [parameter.grad for parameter in self.parameters]
        if isinstance(grads, Tensor):
            raise TypeError("grads must be a list of tensors; got a single tensor, pass [grad]")
        if len(grads) != len(self.names):
            raise ValueError(f"the plan has {len(self.names)} layers; got {len(grads)} gradients")
        return grads

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Filter before every ``optimizer.step()`` until ``handle.remove()``."""
        self._refuse_meta()
        return hooks.attach(self, optimizer)

    @property
    def layers(self) -> list[LayerPlan]:
        """How each layer is filtered, with error bound and workspace."""
        backend = self._choose_backend()
        layers = []
        for index, (name, parameter) in enumerate(zip(self.names, self.parameters, strict=True)):
            shape, dtype = self._shapes[index], parameter.dtype
            d = math.prod(signal_shape(shape, self.spec))
            cutoff = self.spec.kind.changed_bins(self.spec, d, index)
            explained = backend.explain(self.spec, d, index, dtype)
            layers.append(LayerPlan(name, shape, dtype, d, cutoff, *explained))
        return layers

    def describe(self) -> str:
        """A table of the layers: what is removed, by which strategy, at which cost in memory."""
        layers = self.layers
        header = ("layer", "shape", "d", "cutoff", "strategy", "error", "of 1 %", "workspace")
        rows = [
            (
                layer.name,
                "x".join(map(str, layer.shape)),
                f"{layer.d:,}",
                f"{layer.cutoff:,}",
                layer.strategy,
                f"{layer.error_bound:.0e}",
                f"{10 * layer.error_bound:.0e}",  # 1 % of the energy is a tenth of the norm
                f"{layer.workspace_bytes:,} B",
            )
            for layer in layers
        ]
        lines = aligned([header, *rows])
        backend = self._choose_backend()
        total = sum(math.prod(layer.shape) for layer in layers)
        last = f"{len(layers)} layers, {total:,} weights, {self.spec.method} on {backend.NAME}"
        count_launches = getattr(backend, "launches", None)
        if count_launches:
            lengths = [(layer.d, layer.dtype) for layer in layers]
            last += f", {count_launches(self.spec, lengths)}"
        explained = "error: at most, relative to the gradient; of 1 %: relative to what is left"
        return "\n".join([*lines, f"{explained} where that is 1 % of its energy", last])

    def __repr__(self) -> str:
        return f"FilterPlan({len(self.names)} layers, {self.spec})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parameters": None}

    def __copy__(self) -> FilterPlan:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> FilterPlan:
        """Like an optimizer's: copied together with its model, it filters the copy."""
        twin = copy.copy(self)
        twin._parameters = copy.deepcopy(self._parameters, memo)
        return twin
