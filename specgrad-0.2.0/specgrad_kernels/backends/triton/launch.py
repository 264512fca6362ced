"""The call: checks, buffers of each stream, launches."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from specgrad_kernels import checks, overlap
from specgrad_kernels.backends import torch_ref
from specgrad_kernels.backends.triton import binding, compiling, failures, schedule, self_check
from specgrad_kernels.backends.triton.binding import AddressTable
from specgrad_kernels.backends.triton.compiling import Variant
from specgrad_kernels.backends.triton.schedule import Launch, Schedule
from specgrad_kernels.backends.triton.signals import Signal, removal_of, signals_of
from specgrad_kernels.backends.triton.targets import KERNELS, WRITES_GRADIENTS, architecture_of
from specgrad_kernels.layout import signal_shape
from specgrad_kernels.spec import FilterSpec

MAX_KEPT = 64

Kept = TypeVar("Kept", bound="StreamBuffers | PreparedCall")


def layout_guard(grads: Sequence[Tensor]) -> Callable[..., bool] | None:
    """Return PyTorch's own guard on type, device, dtype, sizes, strides and requires_grad.

    One call for all tensors. It is private to PyTorch: ``None`` where it is missing, was changed or
    does not tell these gradients from others, and then every call looks its layout up.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        guards = TensorGuards(*grads, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        check: Callable[..., bool] = guards.check
        others = [torch.empty(2, 0, device="meta")] * len(grads)
        return check if check(*grads) is True and check(*others) is False else None
    except Exception:  # whatever a changed interface may raise: the look-up by layout is as right
        return None


def stream_of(device: torch.device) -> tuple[int, bool]:
    """Return the current stream's number, and True where it is being recorded into a graph."""
    if binding.INTERPRETING:
        return 0, False
    stream = triton.runtime.driver.active.get_current_stream(device.index)
    return stream, torch.cuda.is_current_stream_capturing()


class DtypeGroup:
    """The signals of one dtype: their launches, and their tables on the device."""

    def __init__(self, scheduled: Schedule, dtype: torch.dtype, device: torch.device) -> None:
        self.schedule = scheduled
        self.dtype = dtype
        self._layouts = torch.from_numpy(scheduled.table).to(device)
        self._coefficients = torch.from_numpy(scheduled.coefficients).to(device)
        self._programs = [
            torch.from_numpy(launch.programs).to(device) for launch in scheduled.launches
        ]

    @property
    def variants(self) -> list[Variant]:
        """The kernels to compile."""
        return [Variant.from_launch(launch, self.dtype) for launch in self.schedule.launches]

    def launches(self, addresses: Tensor) -> Iterator[tuple[Launch, dict[str, Any]]]:
        """Yield every launch with its arguments and options, on scratch memory of their own."""
        memory = {
            "addresses_ptr": addresses,
            "layouts_ptr": self._layouts,
            "coefficients_ptr": self._coefficients,
            "workspace_ptr": self._coefficients.new_empty(self.schedule.workspace),
            "borders_ptr": self._coefficients.new_empty(self.schedule.borders, dtype=self.dtype),
        }
        architecture = architecture_of(addresses.device)
        for launch, programs in zip(self.schedule.launches, self._programs, strict=True):
            variant = Variant.from_launch(launch, self.dtype)
            tensors = memory | {"programs_ptr": programs}
            names = KERNELS[launch.kernel].arg_names
            arguments = {name: tensors[name] for name in names if name in tensors}
            yield (
                launch,
                arguments | variant.constants(architecture) | variant.options(architecture),
            )


class StreamBuffers:
    """Scratch memory and addresses for the calls on one stream; the tables are shared."""

    pinned = False

    def __init__(self, call: PreparedCall, grads: Sequence[Tensor], stream: int) -> None:
        self.device = call.device
        self.known: list[int] = []
        self._table = AddressTable(len(grads), call.device, stream)
        # Python threads on one stream share the addresses: writing and using them is one step.
        self._lock = threading.Lock()
        self._copies = {
            index: torch.empty_like(grads[index], memory_format=torch.contiguous_format)
            for index in call.copied
        }
        launches = [each for group in call.groups for each in group.launches(self._table.tensor)]
        self.arguments = [arguments for _, arguments in launches]
        self._launches = [
            binding.bind(stream, KERNELS[launch.kernel], (len(launch.programs),), arguments)
            for launch, arguments in launches
        ]
        writing = [launch.kernel in WRITES_GRADIENTS for launch, _ in launches]
        self._first_write = writing.index(True) if True in writing else len(writing)
        if call.device.type == "cuda":
            # Freed tables may still be read by launches of this stream, which did not make them.
            current = torch.cuda.current_stream(call.device)
            values = (value for arguments in self.arguments for value in arguments.values())
            for tensor in (value for value in values if isinstance(value, Tensor)):
                tensor.record_stream(current)

    def run(self, grads: Sequence[Tensor], addresses: list[int]) -> None:
        """Filter in place; nothing waits for the device."""
        with self._lock:
            launched = 0
            try:
                if addresses != self.known:
                    reached = addresses.copy()
                    for index, copy in self._copies.items():
                        reached[index] = copy.data_ptr()
                    self._table.write(reached)
                    self.known = addresses
                for index, copy in self._copies.items():
                    copy.copy_(grads[index])
                for launch in self._launches:
                    launch()
                    launched += 1
            except Exception as error:
                self.known = []
                if launched > self._first_write:
                    raise
                # no kernel that writes gradients was launched: another backend can take over
                raise failures.record(self.device, "launching a kernel", error) from error
            for index, copy in self._copies.items():
                grads[index].copy_(copy)


def run_schedule(scheduled: Schedule, lists: Sequence[Sequence[Tensor]], room: int) -> None:
    """Filter lists of gradients of one dtype, one after the other, by a schedule made for each.

    ``room`` is the number of addresses whose kernels are used, at least those of a list.
    """
    device = lists[0][0].device
    stream, _ = stream_of(device)
    table = AddressTable(max(room, len(lists[0])), device, stream)
    group = DtypeGroup(scheduled, lists[0][0].dtype, device)
    launches = list(group.launches(table.tensor))  # keeps their memory until the end
    bound = [
        binding.bind(stream, KERNELS[launch.kernel], (len(launch.programs),), arguments)
        for launch, arguments in launches
    ]
    for grads in lists:
        table.write([grad.data_ptr() for grad in grads])
        for call in bound:
            call()
    wait_for(device)


def wait_for(device: torch.device) -> None:
    """Wait until the current stream of a GPU is done."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class _Kept(OrderedDict[Hashable, Kept]):
    """The last objects of a kind; one that a CUDA graph refers to stays as long as the process."""

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


class PreparedCall:
    """Kernels and tables that calls with one spec on gradients of one layout share."""

    def __init__(self, grads: Sequence[Tensor], spec: FilterSpec) -> None:
        checks.check_grads(grads, spec)
        if not binding.INTERPRETING:
            compiling.hash_triton()
        self.spec = spec
        self.device = grads[0].device
        self.pinned = False
        self.stacked: list[int] = []
        self.copied: list[int] = []
        extents = [overlap.extent(grad) if grad.numel() else (0, 0) for grad in grads]
        self._sizes = [end - start for start, end in extents]
        self._buffers: _Kept[StreamBuffers] = _Kept()
        self.matches_layout: Callable[..., bool] = lambda *_: False
        """Answers at once for gradients like those of the last look-up."""
        self.groups = [
            DtypeGroup(schedule.build(signals, spec, dtype is torch.float64), dtype, self.device)
            for dtype, signals in self._sort_signals(grads).items()
        ]
        if not binding.INTERPRETING:
            self._kernels = self._compile()
            if self_check.enabled(self.device):
                self.check()
        # Other streams may use the tables next, and know nothing of these copies.
        wait_for(self.device)

    def _sort_signals(self, grads: Sequence[Tensor]) -> dict[torch.dtype, list[Signal]]:
        """The signals that kernels filter, by dtype; other gradients are noted."""
        by_dtype: dict[torch.dtype, list[Signal]] = {}
        for index, grad in enumerate(grads):
            shape = signal_shape(grad.shape, self.spec)
            d, stack_dims = math.prod(shape), grad.dim() - len(shape)
            strategy = removal_of(self.spec, d, index, grad.dtype is torch.float64).strategy
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
        return by_dtype

    def _compile(self) -> dict[Variant, Any]:
        wanted = [variant for group in self.groups for variant in group.variants]
        with failures.recorded(self.device, "compiling a kernel"):
            compiled = compiling.side_by_side(
                wanted, lambda variant: compiling.compile_here(variant, self.device)
            )
        return dict(zip(wanted, compiled, strict=True))

    def check(self) -> None:
        """Let the kernels check themselves where they have not on such a device."""
        run = partial(run_schedule, room=len(self._sizes))
        for group in self.groups:
            own = {variant: self._kernels[variant] for variant in group.variants}
            self_check.check(group.schedule, self.spec, self.device, own, run)

    @property
    def launches(self) -> int:
        """Kernels of this package that one call launches."""
        return sum(len(group.schedule.launches) for group in self.groups)

    def buffers(self, grads: Sequence[Tensor]) -> StreamBuffers:
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
            return StreamBuffers(self, grads, stream)
        return self._buffers.take(stream, lambda: self._new_buffers(grads, stream))

    def _new_buffers(self, grads: Sequence[Tensor], stream: int) -> StreamBuffers:
        with failures.recorded(self.device, "loading a kernel"):
            return StreamBuffers(self, grads, stream)

    def run(self, grads: Sequence[Tensor]) -> None:
        """Filter gradients of this layout in place, or raise with nothing changed."""
        buffers = self.buffers(grads)
        addresses = list(map(Tensor.data_ptr, grads))
        if addresses != buffers.known:
            self._check_apart(grads, addresses)
        if self.spec.nonfinite == "raise":
            checks.check_finite(grads)
        buffers.run(grads, addresses)
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


class Calls:
    """Prepared calls by layout, and the last one for each spec and number of gradients."""

    def __init__(self) -> None:
        self.by_layout: _Kept[PreparedCall] = _Kept()
        self._latest: dict[tuple[FilterSpec, int], PreparedCall] = {}

    def find(self, grads: Sequence[Tensor], spec: FilterSpec) -> PreparedCall:
        """Return the call for such gradients, prepared at its first use and kept."""
        call = self._latest.get((spec, len(grads)))
        if call is not None and call.matches_layout(*grads):
            return call
        plain = all(type(grad) is Tensor and not grad.requires_grad for grad in grads)
        device = grads[0].device
        if not plain or any(grad.device != device for grad in grads):
            checks.check_grads(grads, spec)
        key = (spec, device, tuple((grad.dtype, grad.shape, grad.stride()) for grad in grads))
        if key not in self.by_layout and stream_of(device)[1]:
            raise RuntimeError(
                "the first call for gradients of this kind compiles kernels and cannot be "
                "captured; call the filter once before the CUDA graph is recorded"
            )
        failures.raise_if_recorded(device)
        call = self.by_layout.take(key, lambda: PreparedCall(grads, spec))
        guard = layout_guard(grads) if plain else None
        if guard is not None:
            call.matches_layout = guard
        if len(self._latest) > MAX_KEPT:
            self._latest.clear()
        self._latest[spec, len(grads)] = call
        return call

    def clear(self) -> None:
        """Forget all of them."""
        self.by_layout.clear()
        self._latest.clear()


calls = Calls()


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Check, then filter in place on the current stream of the gradients' device."""
    device = grads[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            calls.find(grads, spec).run(grads)
    else:
        calls.find(grads, spec).run(grads)
