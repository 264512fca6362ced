"""The call: checks, state per stream, launches."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch
import triton
from torch import Tensor

from specgrad_kernels import checks, overlap
from specgrad_kernels.backends import torch_ref
from specgrad_kernels.backends.triton import handles
from specgrad_kernels.backends.triton.addresses import AddressTable
from specgrad_kernels.backends.triton.tables import Tables
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


class State:
    """Scratch memory and addresses for the calls on one stream; the tables are shared."""

    pinned = False

    def __init__(self, tables: Tables, grads: Sequence[Tensor], stream: int) -> None:
        self.tables = tables
        self.scratch = [group.scratch() for group in tables.groups]
        self.known: list[int] = []
        self._addresses = AddressTable(len(grads), tables.device, stream)
        # Python threads on one stream share the addresses: writing and using them is one step.
        self._lock = threading.Lock()
        self._copies = {
            index: torch.empty_like(grads[index], memory_format=torch.contiguous_format)
            for index in tables.copied
        }
        memory = {"pointers": self._addresses.tensor}
        launches = [
            launch
            for group, scratch in zip(tables.groups, self.scratch, strict=True)
            for launch in group.bind(scratch | memory)
        ]
        self._memory = [
            value
            for *_, arguments in launches
            for value in arguments.values()
            if isinstance(value, Tensor)
        ]
        self._launches = [
            handles.bind(kernel, grid, stream, arguments) for kernel, grid, arguments in launches
        ]
        if tables.device.type == "cuda":
            # Freed tables may still be read by launches of this stream, which did not make them.
            current = torch.cuda.current_stream(tables.device)
            for tensor in self._memory:
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
        stacked = self.tables.stacked
        if stacked:
            torch_ref.filter_stacked_(
                [grads[index] for index in stacked], self.tables.spec.select(stacked)
            )


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
        self.tables = Tables(grads, spec)
        self.spec = spec
        self.pinned = False
        self._sizes = [_extent_of(grad) for grad in grads]
        self._states: _Kept[State] = _Kept()
        self.fits: Callable[..., bool] = _never
        self.expect(grads)

    def expect(self, grads: Sequence[Tensor]) -> None:
        """Let ``fits(*grads)`` answer at once for gradients like these."""
        if TensorGuards is not None:
            guards = TensorGuards(*grads, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            self.fits = guards.check

    def state(self, grads: Sequence[Tensor]) -> State:
        """Memory for a call on the current stream: the stream's own, or a graph's own.

        A graph's is left to the graph when the call ends: memory that was allocated while it was
        recorded stays reserved for its replays.
        """
        stream, capturing = stream_of(self.tables.device)
        if capturing:
            self.pinned = True
            if self.spec.nonfinite == "raise":
                raise RuntimeError(
                    "nonfinite='raise' waits for an answer of the device, which cannot be recorded "
                    "into a CUDA graph; use nonfinite='propagate'"
                )
            return State(self.tables, grads, stream)
        return self._states.take(stream, lambda: State(self.tables, grads, stream))

    def run(self, grads: Sequence[Tensor]) -> None:
        """Filter gradients of this layout in place, or raise with nothing changed."""
        state = self.state(grads)
        addresses = list(map(Tensor.data_ptr, grads))
        if addresses != state.known:
            self._check_apart(grads, addresses)
        if self.spec.nonfinite == "raise":
            checks.check_finite(grads)
        state.run(grads, addresses)
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


def _never(*_: Tensor) -> bool:
    return False


def _extent_of(grad: Tensor) -> int:
    if grad.numel() == 0:
        return 0
    start, end = overlap.extent(grad)
    return end - start


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
    if plain:
        program.expect(grads)
    if len(_latest) > MAX_KEPT:
        _latest.clear()
    _latest[spec, len(grads)] = program
    return program


def forget() -> None:
    """Drop everything that is kept from call to call."""
    _programs.clear()
    _latest.clear()


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Check, then filter in place on the current stream of the gradients' device."""
    device = grads[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            find(grads, spec).run(grads)
    else:
        find(grads, spec).run(grads)
