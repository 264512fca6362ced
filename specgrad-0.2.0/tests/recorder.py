"""A CUDA graph that is not there: calls recorded by ``TorchDispatchMode``, replayed on the CPU.

A capture notes every call with the memory it reads and writes and leaves that memory as it was; a
replay makes the same calls on the same memory. What a real capture forbids raises: values read on
the host, shapes that depend on values, copies from host memory, random numbers. What a real replay
would get wrong is wrong here too: memory from outside must still be alive, memory of the graph
holds NaN before every replay, and whatever the host computed during the capture is frozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

FORBIDDEN = {
    torch.Tag.data_dependent_output: "reads a value on the host",
    torch.Tag.dynamic_output_shape: "makes a shape that depends on values",
    torch.Tag.nondeterministic_seeded: "draws random numbers",
}
# kernels of one call on a GPU, where there are several: PyTorch's group_norm_kernel.cu, and a
# gradient of the input and one of the weights
KERNELS = {
    "aten.native_group_norm.default": 3,
    "aten.native_group_norm_backward.default": 5,
    "aten.convolution_backward.default": 2,
}
# work of the host alone
NO_LAUNCH = ("lift_fresh", "detach", "as_strided_", "_local_scalar_dense", "resize_", "set_")


def tensors_in(*trees: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(trees)[0] if isinstance(leaf, Tensor)]


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def launches(function: Any, args: Any, kwargs: Any, made: Any) -> bool:
    """Return true if a call has work for a device: it writes, or its result is no view."""
    name = function.overloadpacket.__name__
    if "empty" in name or name in NO_LAUNCH:
        return False
    if function._schema.is_mutable:
        return True
    given = {storage_of(tensor) for tensor in tensors_in(args, kwargs)}
    return any(storage_of(tensor) not in given for tensor in tensors_in(made))


class CountedLaunches(TorchDispatchMode):
    """Counts the kernels that the calls of a passage would launch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @property
    def kernels(self) -> int:
        return sum(KERNELS.get(name, 1) for name in self.names)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if launches(function, args, kwargs, made):
            self.names.append(str(function))
        return made


@dataclass(frozen=True)
class _Memory:
    """A tensor as the place of its numbers. ``held`` keeps memory of the graph alive, no other."""

    where: StorageWeakRef
    held: torch.UntypedStorage | None
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.where.cdata)
        if storage is None:
            raise RuntimeError("a replay uses memory that was freed after the capture")
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.size, self.stride)


class RecordedGraph(TorchDispatchMode):
    """Takes the place of ``torch.cuda.CUDAGraph``."""

    current: RecordedGraph | None = None

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[Any]]] = []
        self._own: dict[int, torch.UntypedStorage] = {}
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._on_device: set[int] = set()
        self.replays = 0

    @property
    def launches(self) -> list[str]:
        """Names of the recorded calls."""
        return [str(function) for function, *_ in self._calls]

    def capture_begin(self, pool: Any = None) -> None:
        RecordedGraph.current = self
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)
        RecordedGraph.current = None
        for changed, before in self._before.values():
            changed.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        self.replays += 1
        plain = torch._C.DisableTorchFunction()
        with plain, _disable_current_modes(), torch.no_grad():
            for storage in self._own.values():
                storage.fill_(255)  # NaN
            for function, args, kwargs, outputs in self._calls:
                found = tree_flatten(function(*_there(args), **_there(kwargs)))[0]
                for place, value in zip(outputs, found, strict=True):
                    if isinstance(place, _Memory):
                        place.tensor().copy_(value)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors_in(args, kwargs)
        self._on_device |= {storage_of(t) for t in given if t.device.type == "cuda"}
        device = [t for t in given if storage_of(t) in self._on_device]
        if device:
            for tag in FORBIDDEN.keys() & set(function.tags) - _harmless_tags(function, args):
                raise RuntimeError(f"{function} {FORBIDDEN[tag]} while a graph is captured")
            if any(
                t.dim() and storage_of(t) not in self._on_device | set(self._own) for t in given
            ):
                raise RuntimeError(f"{function} reads host memory while a graph is captured")
        schema = function._schema.arguments
        named = {arg.name: value for arg, value in zip(schema, args, strict=False)} | kwargs
        self._keep_before([named[arg.name] for arg in schema if arg.is_write and arg.name in named])
        made = function(*args, **kwargs)
        known = {storage_of(tensor) for tensor in given}
        for tensor in tensors_in(made):
            if storage_of(tensor) not in known:
                self._own[storage_of(tensor)] = tensor.untyped_storage()
                if device:
                    self._on_device.add(storage_of(tensor))
        if launches(function, args, kwargs, made):
            outputs = [
                self._memory(leaf)
                if isinstance(leaf, Tensor) and storage_of(leaf) not in known
                else 0
                for leaf in tree_flatten(made)[0]
            ]
            places = tree_map(self._memory, (args, kwargs))
            self._calls.append((function, *places, outputs))
        return made

    def _keep_before(self, written: Any) -> None:
        for tensor in tensors_in(written):
            key = storage_of(tensor)
            if key not in self._own and key not in self._before:
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self._before[key] = whole, whole.clone()

    def _memory(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        storage = value.untyped_storage()
        if not value.dim() and storage._cdata not in self._on_device | set(self._own):
            return value.clone()  # a number of the host, which a launch carries as its argument
        held = self._own.get(storage._cdata)
        shape = value.storage_offset(), tuple(value.shape), value.stride()
        return _Memory(StorageWeakRef(storage), held, value.dtype, *shape)


def _harmless_tags(function: Any, args: Any) -> set[torch.Tag]:
    """Indexing makes a shape that depends on values only where an index is a mask."""
    masks = (torch.bool, torch.uint8)
    if function is not torch.ops.aten.index.Tensor:
        return set()
    masked = any(index.dtype in masks for index in tensors_in(args[1]))
    return set() if masked else {torch.Tag.dynamic_output_shape}


def _there(tree: Any) -> Any:
    """The tensors of a recorded call."""
    return tree_map(lambda value: value.tensor() if isinstance(value, _Memory) else value, tree)
