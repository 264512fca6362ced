"""Device state of one kind of call, and the call itself."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from specgrad_kernels import checks
from specgrad_kernels.backends import torch_ref
from specgrad_kernels.backends.triton import band, dense, detrend, schedule, targets
from specgrad_kernels.backends.triton.signals import can_walk, signals_of
from specgrad_kernels.layout import signal_length
from specgrad_kernels.spec import FilterSpec

KERNELS: dict[str, Any] = {
    kernel.__name__: kernel
    for kernel in (
        band.spread_columns,
        band.transform_middle,
        band.solve_rows,
        band.subtract_columns,
        dense.project_waves,
        detrend.save_borders,
        detrend.subtract_smooth,
    )
}
ELEMENTS = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
MAX_PREPARED = 64


def is_double(dtype: torch.dtype) -> bool:
    """Whether a dtype is computed in double precision."""
    return dtype is torch.float64


def constants_of(
    launch: schedule.Launch, dtype: torch.dtype, strided: bool, precision: str
) -> dict[str, Any]:
    """Every compile-time argument of a launch."""
    common = {
        "ELEMENT": ELEMENTS[dtype],
        "REAL": tl.float64 if is_double(dtype) else tl.float32,
        "STRIDED": strided,
        "PRECISION": precision,
    }
    names = KERNELS[launch.kernel].arg_names
    return {name: value for name, value in common.items() if name in names} | launch.sizes


class Group:
    """All signals of one dtype: tables on the device, and their launches."""

    def __init__(self, plan: schedule.Schedule, dtype: torch.dtype, device: torch.device) -> None:
        self.schedule = plan
        self.device = device
        double = is_double(dtype)
        nvidia = targets.is_nvidia()
        real = torch.float64 if double else torch.float32
        self.tensors = {
            "table": torch.from_numpy(plan.table).to(device),
            "coefficients": torch.from_numpy(plan.coefficients).to(device),
            "workspace": torch.empty(plan.workspace, dtype=real, device=device),
            "borders": torch.empty(plan.borders, dtype=dtype, device=device),
        }
        self._launches = []
        for launch in plan.launches:
            kernel = KERNELS[launch.kernel]
            programs = torch.from_numpy(launch.programs).to(device)
            arguments = {
                name: self.tensors[name] for name in kernel.arg_names if name in self.tensors
            }
            arguments["programs"] = programs
            constants = constants_of(
                launch, dtype, plan.strided, targets.precision_of(nvidia, double)
            )
            options = targets.options_of(launch.kernel, launch.sizes, nvidia, double)
            takes_pointers = "pointers" in kernel.arg_names
            grid = kernel[(len(launch.programs),)]
            self._launches.append((grid, takes_pointers, {**arguments, **constants, **options}))

    def launch(self, pointers: Tensor) -> None:
        """Run every kernel on the current stream."""
        for grid, takes_pointers, arguments in self._launches:
            if takes_pointers:
                grid(pointers=pointers, **arguments)
            else:
                grid(**arguments)


class Prepared:
    """Everything decided once for calls with these shapes, layouts and dtypes on one stream."""

    def __init__(self, grads: Sequence[Tensor], spec: FilterSpec) -> None:
        self._spec = spec
        self._device = grads[0].device
        self._staged: dict[int, Tensor] = {}
        self._stacked: list[int] = []
        self._pointers: Tensor | None = None
        self._addresses: list[int] = []
        self._captured: list[Tensor] = []
        by_dtype: dict[torch.dtype, list] = {}
        for index, grad in enumerate(grads):
            if grad.numel() == 0:
                continue
            d = signal_length(grad.shape, spec.batch_dims)
            strategy = schedule.strategy_of(spec, d, index, is_double(grad.dtype))
            if strategy == "stacked":
                self._stacked.append(index)
            if strategy in ("identity", "stacked"):
                continue
            if not can_walk(grad, spec.batch_dims):
                self._staged[index] = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
            walked = self._staged.get(index, grad)
            by_dtype.setdefault(grad.dtype, []).extend(signals_of(walked, index, spec.batch_dims))
        self.groups = [
            Group(schedule.build(signals, spec, is_double(dtype)), dtype, self._device)
            for dtype, signals in by_dtype.items()
        ]

    @property
    def launches(self) -> int:
        """Kernels of this package that one call launches."""
        return sum(len(group.schedule.launches) for group in self.groups)

    def knows(self, grads: Sequence[Tensor]) -> bool:
        """Whether the last call was for gradients at the same addresses."""
        return self._addresses == [grad.data_ptr() for grad in grads]

    def run(self, grads: Sequence[Tensor]) -> None:
        """Filter checked gradients in place; nothing waits for the device."""
        pointers = self._upload([grad.data_ptr() for grad in grads])
        for index, staged in self._staged.items():
            staged.copy_(grads[index])
        for group in self.groups:
            group.launch(pointers)
        for index, staged in self._staged.items():
            grads[index].copy_(staged)
        if self._stacked:
            torch_ref.filter_stacked_(
                [grads[index] for index in self._stacked], self._spec.select(self._stacked)
            )

    def _upload(self, addresses: list[int]) -> Tensor:
        """The pointer table on the device, written there only when an address changed."""
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            # A graph replays its own copy, so a later call with other gradients cannot move
            # the addresses under it.
            table = torch.empty(len(addresses), dtype=torch.int64, device=self._device)
            self._captured += [table, self._write(table, addresses)]
            return table
        if self._pointers is None:
            self._pointers = torch.empty(len(addresses), dtype=torch.int64, device=self._device)
        if addresses != self._addresses:
            self._write(self._pointers, addresses)
            self._addresses = addresses
        return self._pointers

    def _write(self, table: Tensor, addresses: list[int]) -> Tensor:
        source = torch.tensor(
            [
                self._staged[i].data_ptr() if i in self._staged else a
                for i, a in enumerate(addresses)
            ],
            dtype=torch.int64,
            pin_memory=self._device.type == "cuda",
        )
        table.copy_(source, non_blocking=True)
        return source


_prepared: OrderedDict[tuple, Prepared] = OrderedDict()


def prepare(grads: Sequence[Tensor], spec: FilterSpec) -> Prepared:
    """The state for such a call, built at its first use and kept for the next ones."""
    device = grads[0].device
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    layouts = tuple((grad.dtype, grad.shape, grad.stride()) for grad in grads)
    key = (spec, device, stream, layouts)
    state = _prepared.get(key)
    if state is None:
        checks.check_grads(grads, spec)
        state = _prepared[key] = Prepared(grads, spec)
        if len(_prepared) > MAX_PREPARED:
            _prepared.popitem(last=False)
    _prepared.move_to_end(key)
    return state


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Check, then filter in place on the current stream of the gradients' device."""
    plain = all(type(grad) is Tensor and not grad.requires_grad for grad in grads)
    if not plain or len({grad.device for grad in grads}) > 1:
        checks.check_grads(grads, spec)
    on_gpu = grads[0].device.type == "cuda"
    with torch.cuda.device(grads[0].device) if on_gpu else contextlib.nullcontext():
        state = prepare(grads, spec)
        if not state.knows(grads):
            checks.check_grads(grads, spec)
        if spec.nonfinite == "raise":
            checks.check_finite(grads)
        state.run(grads)
    torch.autograd.graph.increment_version(list(grads))
