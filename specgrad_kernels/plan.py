"""FilterPlan: a spec bound to the layers of a model, decided once and used every step."""

from __future__ import annotations

import copy
import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from specgrad_kernels import dispatch, hooks, ops
from specgrad_kernels.backends import Backend, choose
from specgrad_kernels.layers import PRESETS, Selector, aligned, select_layers
from specgrad_kernels.layout import permuted_shape, signal_shape
from specgrad_kernels.sharded import filter_sharded_, is_sharded
from specgrad_kernels.spec import FilterSpec, make_spec

# of the weights of a model: the paper's plan for a ViT filters 0.3 %
_SMALL_SHARE = 0.001


@dataclass(frozen=True)
class LayerPlan:
    """Description of the filter of one layer.

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
        if isinstance(named_parameters, nn.Module):
            raise TypeError(
                "FilterPlan takes (name, parameter) pairs; for a model call "
                "FilterPlan.for_model(model)"
            )
        named = list(named_parameters)
        self.spec = spec or FilterSpec()
        self.spec.check_count(len(named))
        self.backend = backend
        self.names = [name for name, _ in named]
        self._shapes = [tuple(parameter.shape) for _, parameter in named]
        self._parameters: list[nn.Parameter] | None = [parameter for _, parameter in named]
        self._is_sharded = any(map(is_sharded, self._parameters))
        self._attached = self._warned = False
        self._model: Callable[[], nn.Module | None] | None = None
        self._missing: list[str] = []  # names of the layers that had no gradient in the last call
        self._turn = 0  # of the layer that was looked up in the model
        self._choose_backend()  # one that cannot filter these is refused now

    @classmethod
    def for_model(
        cls,
        model: nn.Module,
        spec: FilterSpec | str | None = None,
        select: Selector = "auto",
        *,
        backend: str = "auto",
        **fields: Any,
    ) -> FilterPlan:
        """Plan for the layers that ``select_layers(model, select)`` takes.

        spec: a :class:`FilterSpec`, or the name of a method; its other arguments by name, as in
            ``FilterPlan.for_model(model, "fft", ratio=0.1)``.
        """
        if isinstance(spec, str) and spec in PRESETS:
            raise ValueError(f"{spec!r} selects layers; write select={spec!r}")
        made = make_spec(spec, fields)
        taken = select_layers(model, select).taken
        weights = sum(parameter.numel() for parameter in taken.values())
        trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
        if weights < _SMALL_SHARE * trained and isinstance(select, str) and select in PRESETS:
            warnings.warn(
                f"the plan filters {weights:,} of the model's {trained:,} weights; print("
                "select_layers(model)) says why, and select= takes other layers",
                RuntimeWarning,
                stacklevel=2,
            )
        plan = cls(taken.items(), made, backend=backend)
        plan._model = weakref.ref(model)
        return plan

    def _refuse_meta(self) -> None:
        """Refuse meta tensors: giving their model memory replaces them, and the plan has none."""
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
        self._model = weakref.ref(model)
        self._is_sharded = any(map(is_sharded, self._parameters))
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
        if self._is_sharded:
            filter_sharded_(self._listed(grads), self.spec, self.backend)
            return
        if grads is None and parameters:
            present = [grad for each in parameters if (grad := each.grad) is not None]
            if len(present) == len(parameters) and not present[0].is_meta:
                if self._model and not self._warned and self._next_is_elsewhere(parameters):
                    self._warn_of_replaced(parameters)
                dispatch.run(present, self.spec, self.backend)
                return
            if not self._warned:
                self._warn_of_replaced(parameters)
        ops.apply(self._listed(grads), self.spec, self.backend)

    def _next_is_elsewhere(self, parameters: list[nn.Parameter]) -> bool:
        """Return True if the model has another parameter under a name; each call tries the next.

        A replaced parameter may keep an old gradient, and to try all takes longer than the call.
        """
        module = self._model() if self._model else None
        if module is None:
            return False
        self._turn = (self._turn + 1) % len(parameters)
        *path, leaf = self.names[self._turn].split(".")
        for name in path:
            module = module._modules.get(name) if module is not None else None
        return module is None or module._parameters.get(leaf) is not parameters[self._turn]

    def _warn_of_replaced(self, parameters: list[nn.Parameter]) -> None:
        """Warn once if the model has other parameters by now, or no layer has a gradient."""
        named = dict(zip(self.names, parameters, strict=True))
        missing = [name for name, parameter in named.items() if parameter.grad is None]
        if missing and missing == self._missing:
            return
        self._missing = missing
        model = self._model() if self._model else None
        own = parameters if model is None else list(model.parameters())
        there = {id(parameter) for parameter in own}
        replaced = [name for name, parameter in named.items() if id(parameter) not in there]
        if len(missing) == len(named):
            found = f"none of the plan's {len(named)} layers has a gradient: nothing was filtered"
        elif replaced:
            found = f"the model's parameter {replaced[0]} was replaced, so it was not filtered"
        else:
            return
        self._warned = True
        warnings.warn(
            f"{found}; call plan.bind(model) if the model's parameters were replaced, as "
            "load_state_dict(assign=True) does",
            RuntimeWarning,
            stacklevel=3,
        )

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

    def attach(
        self, optimizer: torch.optim.Optimizer, *, max_norm: float | None = None
    ) -> RemovableHandle:
        """Filter before every ``optimizer.step()`` until ``handle.remove()``.

        max_norm: after the filter, clip the norm of all gradients of the optimizer to this, as
            ``torch.nn.utils.clip_grad_norm_`` does. Called before the step, that function would
            clip gradients that are not yet filtered.
        """
        self._refuse_meta()
        handle = hooks.attach(self, optimizer, max_norm)
        self._attached = True
        return handle

    def state_dict(self) -> dict[str, Any]:
        """Return what is filtered and how, for a checkpoint."""
        shapes = [list(shape) for shape in self._shapes]
        return {"spec": self.spec.text, "names": list(self.names), "shapes": shapes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Filter as the plan that wrote ``state``; its layers must be those of this plan."""
        own = self.state_dict()
        for key in ("names", "shapes"):
            if state[key] != own[key]:
                raise ValueError(
                    f"the checkpoint's plan has other {key} than this one: {state[key]!r} and "
                    f"{own[key]!r}; make the plan with the select= of the checkpoint"
                )
        self.spec = FilterSpec.from_text(state["spec"])
        self._choose_backend()

    @property
    def layers(self) -> list[LayerPlan]:
        """Describe the filter of each layer, with error bound and workspace."""
        backend = self._choose_backend()
        layers = []
        for index, (name, parameter) in enumerate(zip(self.names, self.parameters, strict=True)):
            shape, dtype = self._shapes[index], parameter.dtype
            signal = signal_shape(permuted_shape(shape, self.spec), self.spec)
            d, kind = math.prod(signal), self.spec.kind
            cutoff, explained = 0, ("identity", 0.0, 0)
            if kind.parameters(self.spec, signal, index) is not None:
                cutoff = kind.changed_bins(self.spec, d, index)
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
        plural = "" if len(layers) == 1 else "s"
        last = (
            f"{len(layers)} layer{plural}, {total:,} weights, {self.spec.method} on {backend.NAME}"
        )
        count_launches = getattr(backend, "launches", None)
        if count_launches:
            lengths = [(layer.d, layer.dtype) for layer in layers]
            last += f", {count_launches(self.spec, lengths)}"
        explained = "error: at most, relative to the gradient; of 1 %: relative to what is left"
        return "\n".join([*lines, f"{explained} where that is 1 % of its energy", last])

    def __repr__(self) -> str:
        return f"FilterPlan({len(self.names)} layers, {self.spec})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parameters": None, "_attached": False, "_model": None}

    def __copy__(self) -> FilterPlan:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> FilterPlan:
        """Like an optimizer's: copied together with its model, it filters the copy."""
        if self._attached:
            warnings.warn(
                "the plan is attached to an optimizer, and a copied optimizer has no hooks; attach "
                "the copied plan to the copied optimizer",
                RuntimeWarning,
                stacklevel=2,
            )
        twin = copy.copy(self)
        twin._attached = False
        twin._parameters = copy.deepcopy(self._parameters, memo)
        twin._model = None
        return twin
