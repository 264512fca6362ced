"""The call: checks, state per stream, launches."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from specgrad_kernels import checks, overlap
from specgrad_kernels.backends import torch_ref
from specgrad_kernels.backends.triton import handles, schedule, targets
from specgrad_kernels.backends.triton.handles import AddressTable
from specgrad_kernels.backends.triton.signals import Signal, loss_of, signals_of
from specgrad_kernels.layout import signal_shape
from specgrad_kernels.spec import FilterSpec

try:
    # one call for all tensors: type, device, dtype, sizes, strides and requires_grad
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # private to PyTorch; without it every call looks its program up by layout
    TensorGuards = None  # type: ignore[assignment, misc]

MAX_KEPT = 64

Kept = TypeVar("Kept", bound="State | Program")


def stream_of(device: torch.device) -> tuple[int, bool]:
    """The current stream's number, and whether it is being recorded into a graph."""
    if handles.INTERPRETING:
        return 0, False
    stream = triton.runtime.driver.active.get_current_stream(device.index)
    return stream, torch.cuda.is_current_stream_capturing()


class Group:
    """The signals of one dtype: their launches, and their tables on the device."""

    def __init__(self, plan: schedule.Schedule, dtype: torch.dtype, device: torch.device) -> None:
        self.plan = plan
        self.dtype = dtype
        self._table = torch.from_numpy(plan.table).to(device)
        self._coefficients = torch.from_numpy(plan.coefficients).to(device)
        self._programs = [torch.from_numpy(launch.programs).to(device) for launch in plan.launches]

    def launches(self, pointers: Tensor) -> Iterator[tuple[Any, tuple[int], dict[str, Any]]]:
        """Kernel, grid and arguments of every launch, on scratch memory of their own."""
        memory = {
            "pointers": pointers,
            "table": self._table,
            "coefficients": self._coefficients,
            "workspace": self._coefficients.new_empty(self.plan.workspace),
            "borders": self._coefficients.new_empty(self.plan.borders, dtype=self.dtype),
        }
        architecture = targets.architecture_of(pointers.device)
        for launch, programs in zip(self.plan.launches, self._programs, strict=True):
            kernel = targets.KERNELS[launch.kernel]
            which = (launch.kernel, launch.sizes, self.dtype, architecture)
            tensors = memory | {"programs": programs}
            arguments = {name: tensors[name] for name in kernel.arg_names if name in tensors}
            arguments |= targets.constants_of(*which) | targets.options_of(*which)
            yield kernel, (len(programs),), arguments


class State:
    """Scratch memory and addresses for the calls on one stream; the tables are shared."""

    pinned = False

    def __init__(self, program: Program, grads: Sequence[Tensor], stream: int) -> None:
        self.known: list[int] = []
        self._addresses = AddressTable(len(grads), program.device, stream)
        # Python threads on one stream share the addresses: writing and using them is one step.
        self._lock = threading.Lock()
        self._copies = {
            index: torch.empty_like(grads[index], memory_format=torch.contiguous_format)
            for index in program.copied
        }
        pointers = self._addresses.tensor
        launches = [launch for group in program.groups for launch in group.launches(pointers)]
        self.arguments = [arguments for *_, arguments in launches]
        self._launches = [handles.bind(stream, *launch) for launch in launches]
        if program.device.type == "cuda":
            # Freed tables may still be read by launches of this stream, which did not make them.
            current = torch.cuda.current_stream(program.device)
            values = (value for arguments in self.arguments for value in arguments.values())
            for tensor in (value for value in values if isinstance(value, Tensor)):
                tensor.record_stream(current)

    def run(self, grads: Sequence[Tensor], addresses: list[int]) -> None:
        """Filter in place; nothing waits for the device."""
        with self._lock:
            if addresses != self.known:
                reached = addresses.copy()
                for index, copy in self._copies.items():
                    reached[index] = copy.data_ptr()
                self._addresses.write(reached)
                self.known = addresses
            for index, copy in self._copies.items():
                copy.copy_(grads[index])
            for launch in self._launches:
                launch()
            for index, copy in self._copies.items():
                grads[index].copy_(copy)


class _Kept(OrderedDict[Hashable, Kept]):
    """The last things of a kind; one that a CUDA graph refers to stays as long as the process."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def take(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        with self._lock:
            if key not in self:
                self[key] = make()
                if len(self) > MAX_KEPT:
                    oldest = next((k for k, kept in self.items() if not kept.pinned), None)
                    if oldest is not None:
                        del self[oldest]
            self.move_to_end(key)
            return self[key]


class Program:
    """What calls with one spec on gradients of one layout share, and a state per stream."""

    def __init__(self, grads: Sequence[Tensor], spec: FilterSpec) -> None:
        checks.check_grads(grads, spec)
        self.spec = spec
        self.device = grads[0].device
        self.pinned = False
        self.stacked: list[int] = []
        self.copied: list[int] = []
        extents = [overlap.extent(grad) if grad.numel() else (0, 0) for grad in grads]
        self._sizes = [end - start for start, end in extents]
        self._states: _Kept[State] = _Kept()
        self.fits: Callable[..., bool] = lambda *_: False
        """Answers at once for gradients like those of the last look-up."""
        by_dtype: dict[torch.dtype, list[Signal]] = {}
        for index, grad in enumerate(grads):
            shape = signal_shape(grad.shape, spec)
            d, stack_dims = math.prod(shape), grad.dim() - len(shape)
            strategy = loss_of(spec, d, index, grad.dtype is torch.float64).strategy
            if strategy == "identity" or grad.numel() == 0:
                continue
            if strategy == "stacked":
                self.stacked.append(index)
                continue
            signals = signals_of(grad, index, stack_dims)
            if not signals:
                self.copied.append(index)
                signals = signals_of(torch.empty(grad.shape, device="meta"), index, stack_dims)
            by_dtype.setdefault(grad.dtype, []).extend(signals)
        self.groups = [
            Group(schedule.build(signals, spec, dtype is torch.float64), dtype, self.device)
            for dtype, signals in by_dtype.items()
        ]
        if self.device.type == "cuda":
            # Other streams may use the tables next, and know nothing of these copies.
            torch.cuda.current_stream(self.device).synchronize()

    @property
    def launches(self) -> int:
        """Kernels of this package that one call launches."""
        return sum(len(group.plan.launches) for group in self.groups)

    def state(self, grads: Sequence[Tensor]) -> State:
        """Memory for a call on the current stream: the stream's own, or a graph's own.

        A graph's is left to the graph when the call ends: memory that was allocated while it was
        recorded stays reserved for its replays.
        """
        stream, capturing = stream_of(self.device)
        if capturing:
            self.pinned = True
            if self.spec.nonfinite == "raise":
                raise RuntimeError(
                    "nonfinite='raise' waits for an answer of the device, which cannot be recorded "
                    "into a CUDA graph; use nonfinite='propagate'"
                )
            return State(self, grads, stream)
        return self._states.take(stream, lambda: State(self, grads, stream))

    def run(self, grads: Sequence[Tensor]) -> None:
        """Filter gradients of this layout in place, or raise with nothing changed."""
        state = self.state(grads)
        addresses = list(map(Tensor.data_ptr, grads))
        if addresses != state.known:
            self._check_apart(grads, addresses)
        if self.spec.nonfinite == "raise":
            checks.check_finite(grads)
        state.run(grads, addresses)
        if self.stacked:
            left = [grads[index] for index in self.stacked]
            torch_ref.filter_stacked_(left, self.spec.select(self.stacked))
        torch.autograd.graph.increment_version(grads)

    def _check_apart(self, grads: Sequence[Tensor], addresses: list[int]) -> None:
        """Refuse gradients that share memory; a layout cannot, and was looked at once."""
        end = 0
        for start, size in sorted(zip(addresses, self._sizes, strict=True)):
            if start < end:
                # extents may interleave without a common byte: only the exact search tells
                checks.check_overlap(grads)
                return
            end = start + size


_programs: _Kept[Program] = _Kept()
_latest: dict[tuple[FilterSpec, int], Program] = {}
"""The last program for a spec and a number of gradients: most often the next one too."""


def find(grads: Sequence[Tensor], spec: FilterSpec) -> Program:
    """The program for such a call, built at its first use and kept."""
    program = _latest.get((spec, len(grads)))
    if program is not None and program.fits(*grads):
        return program
    plain = all(type(grad) is Tensor and not grad.requires_grad for grad in grads)
    device = grads[0].device
    if not plain or any(grad.device != device for grad in grads):
        checks.check_grads(grads, spec)
    key = (spec, device, tuple((grad.dtype, grad.shape, grad.stride()) for grad in grads))
    if key not in _programs and stream_of(device)[1]:
        raise RuntimeError(
            "the first call for gradients of this kind compiles kernels and cannot be captured; "
            "call the filter once before the CUDA graph is recorded"
        )
    program = _programs.take(key, lambda: Program(grads, spec))
    if plain and TensorGuards is not None:
        guards = TensorGuards(*grads, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        program.fits = guards.check
    if len(_latest) > MAX_KEPT:
        _latest.clear()
    _latest[spec, len(grads)] = program
    return program


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Check, then filter in place on the current stream of the gradients' device."""
    device = grads[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            find(grads, spec).run(grads)
    else:
        find(grads, spec).run(grads)
