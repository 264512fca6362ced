"""What calls with the same shapes, layouts and dtypes share on a device, whatever the stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from specgrad_kernels.backends.triton import (
    cells,
    detrend,
    means,
    schedule,
    solve,
    targets,
)
from specgrad_kernels.backends.triton.signals import Signal, can_walk, signals_of
from specgrad_kernels.layout import signal_shape
from specgrad_kernels.spec import FilterSpec

KERNELS: dict[str, Any] = {
    kernel.__name__: kernel
    for kernel in (
        cells.spread,
        solve.middle,
        solve.solve,
        cells.interpolate,
        detrend.save_borders,
        detrend.subtract_smooth,
        means.subtract_means,
    )
}
COARSE = ("solve", "middle")
"""Kernels that see no gradient."""
ELEMENTS = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


def is_double(dtype: torch.dtype) -> bool:
    """Whether a dtype is computed in double precision."""
    return dtype is torch.float64


def constants_of(
    launch: schedule.Launch, dtype: torch.dtype, precision: str, architecture: str
) -> dict[str, Any]:
    """Every compile-time argument of a launch."""
    real = tl.float64 if is_double(dtype) else tl.float32
    finest = tl.float64 if targets.solves_finer(dtype, architecture) else real
    common = {
        "ELEMENT": ELEMENTS[dtype],
        "REAL": finest if launch.kernel in COARSE else real,
        "SUM": finest,
        "PRECISION": precision,
    }
    names = KERNELS[launch.kernel].arg_names
    return {name: value for name, value in common.items() if name in names} | launch.sizes


class Group:
    """The signals of one dtype: their tables, and their launches but for the scratch memory."""

    def __init__(self, plan: schedule.Schedule, dtype: torch.dtype, device: torch.device) -> None:
        self.plan = plan
        self.dtype = dtype
        self.device = device
        self.table = torch.from_numpy(plan.table).to(device)
        self.coefficients = torch.from_numpy(plan.coefficients).to(device)
        nvidia, architecture = targets.is_nvidia(), targets.architecture_of(device)
        precision = targets.precision_of(nvidia, is_double(dtype))
        self._launches = []
        for launch in plan.launches:
            kernel = KERNELS[launch.kernel]
            fixed = {
                "table": self.table,
                "coefficients": self.coefficients,
                "programs": torch.from_numpy(launch.programs).to(device),
            }
            arguments = {name: value for name, value in fixed.items() if name in kernel.arg_names}
            arguments |= constants_of(launch, dtype, precision, architecture)
            arguments |= targets.options_of(launch.kernel, launch.sizes, nvidia, dtype.itemsize)
            self._launches.append((kernel, (len(launch.programs),), arguments))

    def scratch(self) -> dict[str, Tensor]:
        """Memory that the launches of one call hand on to each other."""
        real = torch.float64 if is_double(self.dtype) else torch.float32
        return {
            "workspace": torch.empty(self.plan.workspace, dtype=real, device=self.device),
            "borders": torch.empty(self.plan.borders, dtype=self.dtype, device=self.device),
        }

    def bind(self, memory: dict[str, Tensor]) -> list[tuple[Any, tuple[int], dict[str, Any]]]:
        """Kernel, grid and arguments of every launch, on ``memory``."""
        return [
            (kernel, grid, arguments | {n: memory[n] for n in kernel.arg_names if n in memory})
            for kernel, grid, arguments in self._launches
        ]


class Tables:
    """How each gradient of a call is filtered, decided once."""

    def __init__(self, grads: Sequence[Tensor], spec: FilterSpec) -> None:
        self.spec = spec
        self.device = grads[0].device
        self.stacked: list[int] = []
        self.copied: list[int] = []
        by_dtype: dict[torch.dtype, list[Signal]] = {}
        for index, grad in enumerate(grads):
            shape = signal_shape(grad.shape, spec)
            d, stack_dims = math.prod(shape), grad.dim() - len(shape)
            wanted = schedule.numbers_of(spec, d, index)
            strategy = schedule.strategy_of(wanted, d, is_double(grad.dtype))
            if strategy == "identity" or grad.numel() == 0:
                continue
            if strategy == "stacked":
                self.stacked.append(index)
                continue
            walked = grad
            if not can_walk(grad, stack_dims):
                self.copied.append(index)
                walked = torch.empty(grad.shape, dtype=grad.dtype, device="meta")
            by_dtype.setdefault(grad.dtype, []).extend(signals_of(walked, index, stack_dims))
        self.groups = [
            Group(schedule.build(signals, spec, is_double(dtype)), dtype, self.device)
            for dtype, signals in by_dtype.items()
        ]
        if self.device.type == "cuda":
            # Other streams may use the tables next, and know nothing of these copies.
            torch.cuda.current_stream(self.device).synchronize()

    @property
    def launches(self) -> int:
        """Kernels of this package that one call launches."""
        return sum(len(group.plan.launches) for group in self.groups)
