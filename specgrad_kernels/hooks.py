"""Filtering before every optimizer step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from specgrad_kernels.plan import FilterPlan


def attach(plan: FilterPlan, optimizer: torch.optim.Optimizer) -> RemovableHandle:
    """Register ``plan`` as a step pre-hook of ``optimizer``.

    The hook sees what the step would use: accumulated over micro-batches, averaged by DDP,
    unscaled under ``GradScaler``. A fused optimizer takes off the scale inside its step, so there
    the hook filters scaled gradients, which gives the scaled result; after an overflow its step
    runs without effect, and ``nonfinite="raise"`` then lets it.
    """
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in zip(plan.names, plan.parameters, strict=True):
        if id(parameter) not in updated:
            raise ValueError(f"the optimizer does not update {name}, which the plan filters")

    def filter_before_step(
        stepping: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        positional = [value for value in args if value is not stepping and value is not None]
        if positional or kwargs.get("closure") is not None:
            raise RuntimeError(
                "optimizer.step(closure) computes gradients after the attached filter has run; "
                "call plan.filter_grads_() at the end of the closure and remove the handle"
            )
        # looked up only where finding NaN and Inf waits for the device anyway
        if plan.spec.nonfinite == "raise" and bool(getattr(stepping, "found_inf", False)):
            return
        plan.filter_grads_()

    return optimizer.register_step_pre_hook(filter_before_step)
