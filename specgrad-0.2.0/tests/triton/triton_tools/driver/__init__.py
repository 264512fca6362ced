"""Triton's own front end and launcher on a machine without a GPU, down to the driver's calls.

``libcuda.c`` takes the place of the driver. What is launched waits in its stream until the device
is made to work, and is then executed by the PTX interpreter: streams in any order among each other,
the launches of one stream in their own.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.nvidia import driver as nvidia
from triton.compiler import CompiledKernel
from triton.runtime import driver

from triton_tools.ptx import PtxKernel
from triton_tools.ptx.machine import Memory

NAME = "libcuda.so.1"
_HEADERS = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
_LISTENER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 3,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
)
_WIDTHS = {"b32": ctypes.c_uint32, "b64": ctypes.c_uint64}


def why_not() -> str | None:
    """Why no stand-in can be built here, in a sentence."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    return None if compiler else "building a stand-in for the CUDA driver needs a C compiler"


def build(folder: Path) -> Path:
    """Compile the stand-in into ``folder``."""
    library = folder / NAME
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    source = Path(__file__).with_name("libcuda.c")
    # by this name the launcher finds it, also where it is loaded already
    options = ["-shared", "-fPIC", "-O1", f"-I{_HEADERS}", f"-Wl,-soname,{NAME}"]
    command = [compiler, *options, source, "-o", library]
    subprocess.run([str(part) for part in command], check=True)
    return library


@dataclass(frozen=True)
class Launch:
    """One launch as the driver got it."""

    name: str
    program: PtxKernel
    programs: int
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """Recorded launches, and the memory that was allocated meanwhile, which is theirs."""

    launches: list[Launch] = field(default_factory=list)
    pool: list[Any] = field(default_factory=list)


class _Allocations(TorchDispatchMode):
    """Keeps what PyTorch allocates, as the pool of a graph does."""

    def __init__(self, pool: list[Any]) -> None:
        super().__init__()
        self.pool = pool

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        self.pool.append(result)
        return result


def memory_of_this_process() -> Memory:
    """The memory of every CPU tensor that is alive: what a kernel may touch at this moment."""
    pieces = {}
    for candidate in gc.get_objects():
        if issubclass(type(candidate), Tensor) and not candidate.is_meta and candidate.numel():
            storage = candidate.untyped_storage()
            raw = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
            pieces[storage.data_ptr()] = np.frombuffer(raw, dtype=np.uint8)
    return Memory(list(pieces.items()))


class _Driver(nvidia.CudaDriver):
    """Triton's driver for NVIDIA GPUs, on the device below instead of PyTorch's."""

    def __init__(self, device: Device) -> None:
        self.utils = nvidia.CudaUtils()
        self.launcher_cls = nvidia.CudaLauncher
        self.get_device_capability = lambda _=0: device.capability
        self.get_current_stream = lambda _=0: device.stream
        self.get_current_device = lambda: 0
        self.set_current_device = lambda _: None


class Device:
    """A device with streams and graphs whose memory is that of the CPU. One for each process."""

    def __init__(self, folder: Path, capability: tuple[int, int] = (8, 0)) -> None:
        self.capability = capability
        self.stream = 0
        self.capturing: Graph | None = None
        self._queues: dict[int, list[Launch]] = {}
        self._kernels: dict[int, CompiledKernel] = {}
        self._programs: dict[int, PtxKernel] = {}
        self._errors: list[BaseException] = []
        library = build(folder)
        os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
        self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self._library.stand_in_capability(*capability)
        self._listener = _LISTENER(self._launched)
        self.listen(True)
        driver.set_active(_Driver(self))
        torch.cuda.is_current_stream_capturing = lambda: self.capturing is not None
        self._remember_loaded_kernels()

    def listen(self, listening: bool) -> None:
        """Queue launches, or let them end in the driver and cost nothing."""
        self._library.stand_in_listen(self._listener if listening else None)

    def _remember_loaded_kernels(self) -> None:
        load = CompiledKernel._init_handles

        def load_and_remember(kernel: CompiledKernel) -> None:
            load(kernel)
            self._kernels[kernel.function] = kernel
            self._programs.pop(kernel.function, None)

        CompiledKernel._init_handles = load_and_remember

    def _launched(
        self, function: int, programs: int, threads: int, shared: int, stream: int, arguments: Any
    ) -> int:
        try:
            launch = self._read(function, programs, threads, shared, arguments)
        except BaseException as error:
            self._errors.append(error)  # a callback cannot raise; the device does at the next work
            return 1
        if self.capturing is not None:
            self.capturing.launches.append(launch)
        else:
            self._queues.setdefault(stream or 0, []).append(launch)
        return 0

    def _read(
        self, function: int, programs: int, threads: int, shared: int, arguments: Any
    ) -> Launch:
        kernel = self._kernels[function]
        if function not in self._programs:
            self._programs[function] = PtxKernel(kernel.asm["ptx"], kernel.metadata.shared)
        program = self._programs[function]
        assert threads == program.kernel.threads, "threads of the launch and of the kernel"
        assert shared == kernel.metadata.shared, "shared memory of the launch and of the kernel"
        widths = [_WIDTHS[kind] for kind in program.kernel.parameter_kinds]
        values = [
            ctypes.cast(arguments[index], ctypes.POINTER(width))[0]
            for index, width in enumerate(widths)
        ]
        return Launch(kernel.name, program, programs, tuple(values))

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        """Calls go to this stream."""
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    @contextmanager
    def record(self) -> Iterator[Graph]:
        """Calls go into a graph, which is yielded and can be replayed."""
        self.capturing = graph = Graph()
        with _Allocations(graph.pool):
            yield graph
        self.capturing = None

    def replay(self, graph: Graph) -> None:
        """Queue the launches of a graph."""
        self._queues.setdefault(self.stream, []).extend(graph.launches)

    def forget(self) -> None:
        """Drop what waits."""
        self._queues.clear()

    def work(self, seed: int = 0) -> list[str]:
        """Execute all that waits; the names of the kernels in the order in which they ran."""
        if self._errors:
            raise self._errors.pop()
        order = random.Random(seed)
        names = []
        memory = memory_of_this_process()
        while any(self._queues.values()):
            queue = self._queues[order.choice([s for s, q in self._queues.items() if q])]
            launch = queue.pop(0)
            launch.program.execute(launch.programs, launch.arguments, memory)
            names.append(launch.name)
        return names
