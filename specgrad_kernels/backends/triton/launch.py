"""The call: state per stream, checks, launches."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from specgrad_kernels import checks
from specgrad_kernels.backends import torch_ref
from specgrad_kernels.backends.triton import addresses
from specgrad_kernels.backends.triton.tables import Tables
from specgrad_kernels.spec import FilterSpec

MAX_KEPT = 64

State = TypeVar("State")


class Prepared:
    """Scratch memory and addresses for calls on one stream; the tables may be shared."""

    def __init__(self, tables: Tables, grads: Sequence[Tensor]) -> None:
        self.tables = tables
        self.scratch = [group.scratch() for group in tables.groups]
        self._pointers = addresses.empty_table(len(grads), tables.device)
        self._known: list[int] = []
        # Python threads on one stream share the addresses: writing and using them is one step.
        self._lock = threading.Lock()
        self._copies = {
            index: torch.empty_like(grads[index], memory_format=torch.contiguous_format)
            for index in tables.copied
        }
        self._launches = [
            launch
            for group, memory in zip(tables.groups, self.scratch, strict=True)
            for launch in group.bind(memory | {"pointers": self._pointers})
        ]

    def knows(self, grads: Sequence[Tensor]) -> bool:
        """Whether the device has the addresses of these gradients already."""
        return self._known == [grad.data_ptr() for grad in grads]

    def run(self, grads: Sequence[Tensor], write: Callable[[Tensor, list[int]], None]) -> None:
        """Filter in place; nothing waits for the device. ``write`` is for addresses that moved."""
        with self._lock:
            self._run(grads, write)

    def _run(self, grads: Sequence[Tensor], write: Callable[[Tensor, list[int]], None]) -> None:
        if not self.knows(grads):
            reached = [self._copies.get(index, grad) for index, grad in enumerate(grads)]
            write(self._pointers, [tensor.data_ptr() for tensor in reached])
            self._known = [grad.data_ptr() for grad in grads]
        for index, copy in self._copies.items():
            copy.copy_(grads[index])
        for launch, arguments in self._launches:
            launch(**arguments)
        for index, copy in self._copies.items():
            grads[index].copy_(copy)
        stacked = self.tables.stacked
        if stacked:
            torch_ref.filter_stacked_(
                [grads[index] for index in stacked], self.tables.spec.select(stacked)
            )


class _Kept(OrderedDict[Hashable, State]):
    """The states of the last calls of different kinds."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def take(self, key: Hashable, make: Callable[[], State]) -> State:
        with self._lock:
            if key not in self:
                self[key] = make()
                if len(self) > MAX_KEPT:
                    self.popitem(last=False)
            self.move_to_end(key)
            return self[key]


_tables: _Kept[Tables] = _Kept()
_prepared: _Kept[Prepared] = _Kept()
_captured: list[Prepared] = []
"""States that CUDA graphs refer to; a graph may be replayed as long as the process lives."""


def stream_of(device: torch.device) -> tuple[int, bool]:
    """The current stream's number, and whether it is being recorded into a graph."""
    if device.type != "cuda":
        return 0, False
    return torch.cuda.current_stream(device).cuda_stream, torch.cuda.is_current_stream_capturing()


def prepare(grads: Sequence[Tensor], spec: FilterSpec) -> Prepared:
    """The state for such a call on this stream, built at its first use and kept."""
    device = grads[0].device
    layouts = tuple((grad.dtype, grad.shape, grad.stride()) for grad in grads)
    key = (spec, device, layouts)

    def make_tables() -> Tables:
        checks.check_grads(grads, spec)
        return Tables(grads, spec)

    def make() -> Prepared:
        return Prepared(_tables.take(key, make_tables), grads)

    stream, capturing = stream_of(device)
    if not capturing:
        return _prepared.take((key, stream), make)
    if key not in _tables:
        raise RuntimeError(
            "the first call for gradients of this kind compiles kernels and cannot be captured; "
            "call the filter once before the CUDA graph is recorded"
        )
    # A graph gets memory and addresses of its own, so that no later call can change them.
    state = make()
    _captured.append(state)
    return state


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Check, then filter in place on the current stream of the gradients' device."""
    plain = all(type(grad) is Tensor and not grad.requires_grad for grad in grads)
    if not plain or len({grad.device for grad in grads}) > 1:
        checks.check_grads(grads, spec)
    device = grads[0].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        state = prepare(grads, spec)
        if not state.knows(grads):
            checks.check_grads(grads, spec)
        if spec.nonfinite == "raise":
            checks.check_finite(grads)
        _, capturing = stream_of(device)
        state.run(grads, addresses.bake if capturing else addresses.upload)
    torch.autograd.graph.increment_version(list(grads))
