"""Filtering before every optimizer step, whoever calls the step and however it is wrapped."""

from __future__ import annotations

import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from specgrad_kernels.sharded import is_sharded

if TYPE_CHECKING:
    from specgrad_kernels.plan import FilterPlan

# An ascent step, as sharpness-aware optimizers make one, changes the weights without the hook.
_CHANGES_BEFORE_WARNING = 3


def attach(plan: FilterPlan, optimizer: Any, max_norm: float | None = None) -> RemovableHandle:
    """Register ``plan`` as a step pre-hook of ``optimizer``, or of the one that it wraps.

    The hook sees what the step would use: accumulated over micro-batches, averaged by DDP,
    unscaled under ``GradScaler``. A fused optimizer takes off the scale inside its step, so there
    the hook filters scaled gradients, which gives the scaled result; after an overflow its step
    runs without effect, and ``nonfinite="raise"`` then lets it. Under ``step(closure)`` the
    gradients are filtered after every evaluation of the closure.
    """
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"max_norm must be positive, or None for no clipping; got {max_norm!r}")
    inner = _unwrap(optimizer, plan.parameters)
    updated = _updated(inner)
    for name, parameter in zip(plan.names, plan.parameters, strict=True):
        if id(parameter) not in updated:
            raise ValueError(
                f"the optimizer does not update {name}, which the plan filters; make both from "
                "the same model, after it was wrapped or moved"
            )
    if not _runs_hooks(inner):
        raise TypeError(
            f"{type(optimizer).__name__}.step() runs no hooks, since it is no step of a "
            "torch.optim.Optimizer that was initialised as one; call plan.filter_grads_() before "
            "each step instead"
        )
    _refuse_second(plan, inner)
    hook = _BeforeStep(plan, max_norm=max_norm)
    handle = inner.register_step_pre_hook(hook)
    _watch(hook, type(optimizer).__name__)
    return handle


def filter_all_steps(plan: FilterPlan) -> RemovableHandle:
    """Filter before the steps of all optimizers that update layers of ``plan``.

    Of these layers each step filters those that its optimizer updates. The handle is a context.
    """

    def before_step(
        stepping: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        updated = _updated(stepping)
        own = [parameter for parameter in plan.parameters if id(parameter) in updated]
        if not own or _unwrap(stepping, own) is not stepping:  # the inner one steps as well
            return None
        _refuse_second(plan, stepping)
        return _BeforeStep(plan, updated)(stepping, args, kwargs)

    return register_optimizer_step_pre_hook(before_step)


class _BeforeStep:
    """The hook: filters now, or after each evaluation of the closure that the step was given."""

    def __init__(
        self, plan: FilterPlan, updated: set[int] | None = None, max_norm: float | None = None
    ) -> None:
        self.plan = plan
        self.max_norm = max_norm
        self.updated = updated  # the plan's parameters of which gradients are filtered, or all
        self.has_run = False

    def __call__(
        self, stepping: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self.has_run = True
        if _inside_own_step(stepping):
            return None
        positional = len(args) > 1 and callable(args[1])
        closure = args[1] if positional else kwargs.get("closure")
        if not callable(closure):
            self._filter(stepping)
            return None

        def evaluate() -> Any:
            loss = closure()
            self._filter(stepping)
            return loss

        if positional:
            return (args[0], evaluate, *args[2:]), kwargs
        return args, {**kwargs, "closure": evaluate}

    def _filter(self, stepping: torch.optim.Optimizer) -> None:
        # looked up only where finding NaN and Inf waits for the device anyway
        if self.plan.spec.nonfinite == "raise" and bool(getattr(stepping, "found_inf", False)):
            return
        grads = None
        if self.updated is not None:
            grads = [p.grad if id(p) in self.updated else None for p in self.plan.parameters]
        with torch.no_grad():  # as the step itself: with create_graph=True gradients require grad
            self.plan.filter_grads_(grads)
        if self.max_norm is not None:
            updated = [p for group in stepping.param_groups for p in group["params"]]
            norm = get_total_norm([p.grad for p in updated if p.grad is not None])
            # a fused optimizer takes off the scale of GradScaler inside its step
            scale = getattr(stepping, "grad_scale", None)
            clip_grads_with_norm_(updated, self.max_norm, norm if scale is None else norm / scale)


def _updated(optimizer: Any) -> set[int]:
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer or wrap one; got {type(optimizer).__name__}"
        )
    return {id(parameter) for group in groups for parameter in group["params"]}


def _unwrap(optimizer: Any, parameters: list[nn.Parameter]) -> Any:
    """The innermost optimizer that runs hooks and updates the parameters; else what was given.

    Wrappers (mixed precision, privacy, sharpness-aware steps, averaging) hold another optimizer as
    an attribute, under many names, and call its step with the gradients that they have made.
    """
    wanted = {id(parameter) for parameter in parameters}
    chain = [optimizer]
    for outer in chain:
        for held in getattr(outer, "__dict__", {}).values():
            is_optimizer = hasattr(held, "param_groups") and callable(getattr(held, "step", None))
            if is_optimizer and wanted <= _updated(held) and not any(held is one for one in chain):
                chain.append(held)
    return next(filter(_runs_hooks, reversed(chain)), optimizer)


def _runs_hooks(optimizer: Any) -> bool:
    """Torch adds the hooks to the step of a class when the first of its kind is initialised."""
    initialised = hasattr(optimizer, "_optimizer_step_pre_hooks")
    return initialised and bool(getattr(type(optimizer).step, "hooked", False))


def _refuse_second(plan: FilterPlan, optimizer: torch.optim.Optimizer) -> None:
    own = {id(parameter): name for name, parameter in zip(plan.names, plan.parameters, strict=True)}
    for hook in optimizer._optimizer_step_pre_hooks.values():
        if isinstance(hook, _BeforeStep):
            for parameter in hook.plan.parameters:
                if id(parameter) in own:
                    raise ValueError(
                        f"the optimizer filters {own[id(parameter)]} already; call remove() on the "
                        "handle of the plan attached before"
                    )


def _inside_own_step(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if a base class's step is called by the step of the optimizer's class.

    Torch runs the hooks for both; the gradients are filtered before the outer one.
    """
    if sum("step" in vars(cls) for cls in type(optimizer).__mro__) < 3:  # own, and Optimizer's
        return False
    hooked = type(optimizer).step.__code__
    frame, steps = sys._getframe(1), 0
    while frame is not None:
        steps += frame.f_code is hooked and frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return steps > 1


def _watch(hook: _BeforeStep, name: str) -> None:
    """Warn if the weights change again and again while the hook has never run."""
    # comparing sharded weights would wait for other processes
    watched = next((p for p in hook.plan.parameters if p.requires_grad and not is_sharded(p)), None)
    if watched is None:
        return
    attached = weakref.ref(hook)  # its optimizer alone keeps it
    changes = 0
    seen: Tensor | None = None

    def look(parameter: Tensor) -> None:
        nonlocal changes, seen
        still = attached()
        if still is None or still.has_run:
            watching.remove()
            return
        now = torch.atleast_1d(parameter.detach())[:1].clone()
        changes += seen is not None and not torch.equal(now, seen)
        seen = now
        if changes == _CHANGES_BEFORE_WARNING:
            watching.remove()
            warnings.warn(
                f"the weights have changed {changes} times, and {name} has never run the attached "
                "filter; attach the plan to the optimizer whose step() changes the weights, or "
                "call plan.filter_grads_() before each step",
                RuntimeWarning,
                stacklevel=2,
            )

    watching = watched.register_post_accumulate_grad_hook(look)
