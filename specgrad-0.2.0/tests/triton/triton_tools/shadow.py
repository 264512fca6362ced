"""Shadow memory for interpreted kernels: who read and who wrote each element of a launch.

Finds accesses outside the tensors that a launch was given, and elements that one program
writes and another touches. Counts the distinct bytes that each launch touches.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.interpreter import interpreter_builder

NOBODY = -1


class MemoryConflict(AssertionError):
    """One program wrote what another touched."""


class OutOfBounds(AssertionError):
    """An access outside every registered tensor."""


class Region:
    """The memory between a tensor's first and last element."""

    def __init__(self, tensor: Tensor) -> None:
        self.start = tensor.data_ptr()
        self.itemsize = tensor.element_size()
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        span = sum((size - 1) * stride for size, stride in steps) + 1 if tensor.numel() else 0
        self.end = self.start + span * self.itemsize
        self.allowed = np.zeros(span, dtype=bool)
        offsets = np.zeros(1 if tensor.numel() else 0, dtype=np.int64)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            offsets = (offsets[:, None] + np.arange(size) * stride).ravel()
        self.allowed[offsets] = True
        self.forget()

    def forget(self) -> None:
        """Start a new launch."""
        self.writer = np.full(len(self.allowed), NOBODY, dtype=np.int32)
        self.reader = np.full(len(self.allowed), NOBODY, dtype=np.int32)
        self.shared = np.zeros(len(self.allowed), dtype=bool)

    def touched_bytes(self) -> tuple[int, int]:
        """Distinct bytes read and written since the launch began."""
        read = np.count_nonzero(self.reader != NOBODY)
        written = np.count_nonzero(self.writer != NOBODY)
        return read * self.itemsize, written * self.itemsize


@dataclass
class Traffic:
    """Distinct bytes of one launch."""

    kernel: str
    read: int
    written: int
    by_address: dict[int, int]


@dataclass
class Shadow:
    """The registered regions, the launch under way and those before it."""

    regions: list[Region] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)

    def register(self, tensors: Sequence[Tensor]) -> None:
        """Allow access to the elements of these tensors."""
        known = {(region.start, region.end) for region in self.regions}
        for tensor in tensors:
            region = Region(tensor)
            if (region.start, region.end) not in known and region.end > region.start:
                self.regions.append(region)
        self.regions.sort(key=lambda region: region.start)

    def begin(self) -> None:
        """Forget the accesses of the launch before."""
        for region in self.regions:
            region.forget()

    def end(self, kernel: str) -> None:
        """Take the launch's traffic down."""
        counts = [region.touched_bytes() for region in self.regions]
        read, written = (sum(count) for count in zip(*counts, strict=True))
        starts = [region.start for region in self.regions]
        by_address = dict(zip(starts, map(sum, counts), strict=True))
        self.traffic.append(Traffic(kernel, read, written, by_address))

    def access(self, addresses: np.ndarray, itemsize: int, writing: bool) -> None:
        """Record one access of the current program to elements at ``addresses``."""
        program = interpreter_builder.grid_idx[0]
        left = addresses.astype(np.int64)
        if not len(left):
            return
        nearest = bisect.bisect_right(self.regions, left.min(), key=lambda region: region.start) - 1
        for region in self.regions[max(nearest, 0) :]:
            if not len(left):
                break
            inside = (left >= region.start) & (left < region.end)
            if not inside.any():
                continue
            offsets, rest = np.divmod(left[inside] - region.start, region.itemsize)
            left = left[~inside]
            if itemsize != region.itemsize or rest.any() or not region.allowed[offsets].all():
                raise OutOfBounds(f"program {program} touches memory between a tensor's elements")
            self._record(region, offsets, program, writing)
        if len(left):
            raise OutOfBounds(f"program {program} touches {len(left)} elements of no tensor")

    def _record(self, region: Region, offsets: np.ndarray, program: int, writing: bool) -> None:
        writers = region.writer[offsets]
        clash = (writers != NOBODY) & (writers != program)
        readers = region.reader[offsets]
        foreign = (readers != NOBODY) & (readers != program)
        if writing:
            clash |= foreign | region.shared[offsets]
            region.writer[offsets] = program
        else:
            region.shared[offsets] |= foreign
            region.reader[offsets] = program
        if clash.any():
            verb = "writes" if writing else "reads"
            raise MemoryConflict(f"program {program} {verb} elements that another one touches")


@contextlib.contextmanager
def shadow_memory(tensors: Sequence[Tensor]) -> Iterator[Shadow]:
    """Watch every launch; ``tensors`` are those that kernels reach through pointer tables."""
    shadow = Shadow()
    shadow.register(tensors)
    builder = interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store
    execute = interpreter.GridExecutor.__call__

    def watched_load(pointers, mask, other, *rest):
        mask_data = np.broadcast_to(mask.data, pointers.data.shape)
        itemsize = pointers.get_element_ty().primitive_bitwidth // 8
        shadow.access(pointers.data[mask_data], itemsize, writing=False)
        return load(pointers, mask, other, *rest)

    def watched_store(pointers, value, mask, *rest):
        mask_data = np.broadcast_to(mask.data, pointers.data.shape)
        itemsize = pointers.get_element_ty().primitive_bitwidth // 8
        shadow.access(pointers.data[mask_data], itemsize, writing=True)
        return store(pointers, value, mask, *rest)

    def watched_execute(executor, *arguments, **named):
        shadow.register([a for a in (*arguments, *named.values()) if isinstance(a, Tensor)])
        shadow.begin()
        execute(executor, *arguments, **named)
        shadow.end(executor.fn.__name__)

    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    interpreter.GridExecutor.__call__ = watched_execute
    try:
        yield shadow
    finally:
        del builder.create_masked_load, builder.create_masked_store
        interpreter.GridExecutor.__call__ = execute
