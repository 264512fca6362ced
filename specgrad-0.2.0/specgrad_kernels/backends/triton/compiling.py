"""Compile the kernels of a call: side by side, with progress, and ahead of time without a GPU."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from inspect import getsource
from typing import Any, TypeVar

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import cache as runtime_cache
from triton.runtime.jit import JITFunction

from specgrad_kernels.backends.triton import binding, schedule, targets
from specgrad_kernels.backends.triton.signals import contiguous_signal
from specgrad_kernels.spec import FilterSpec

QUIET_SECONDS = 2.0
"""Time after which compiling says on stderr what it does."""
SLOWEST_FIRST = ("filter_grid", "interpolate", "spread", "second_factor", "subtract_smooth")
_ELEMENTS = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}

Result = TypeVar("Result")


@dataclass(frozen=True)
class Variant:
    """One kernel at its compile-time sizes."""

    kernel: str
    sizes: tuple[tuple[str, Any], ...]
    dtype: torch.dtype = torch.float32

    @classmethod
    def from_launch(cls, launch: schedule.Launch, dtype: torch.dtype) -> Variant:
        """The variant that a launch runs."""
        return cls(launch.kernel, tuple(sorted(launch.sizes.items())), dtype)

    @property
    def dtype_name(self) -> str:
        """Name of the dtype, without ``torch``."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def label(self) -> str:
        """Readable name of the sizes."""
        return " ".join(f"{name.lower()}={value}" for name, value in self.sizes)

    def constants(self, architecture: str) -> dict[str, Any]:
        """Compile-time arguments."""
        return targets.constants_of(self.kernel, dict(self.sizes), self.dtype, architecture)

    def options(self, architecture: str) -> dict[str, Any]:
        """Launch options."""
        return targets.options_of(self.kernel, dict(self.sizes), self.dtype, architecture)

    def tensor_dtypes(self) -> dict[str, torch.dtype]:
        """Element type of every tensor argument that some kernel takes."""
        real = torch.float64 if self.dtype is torch.float64 else torch.float32
        return {
            "addresses_ptr": torch.int64,
            "layouts_ptr": torch.int64,
            "programs_ptr": torch.int32,
            "coefficients_ptr": real,
            "workspace_ptr": real,
            "borders_ptr": self.dtype,
        }


def variants(
    lengths: Sequence[int], spec: FilterSpec, dtype: torch.dtype = torch.float32
) -> list[Variant]:
    """The kernels that a call on contiguous layers of these lengths launches."""
    signals = [contiguous_signal(length, index) for index, length in enumerate(lengths)]
    scheduled = schedule.build(signals, spec, dtype is torch.float64)
    return [Variant.from_launch(launch, dtype) for launch in scheduled.launches]


def gpu_target(architecture: str) -> GPUTarget:
    """Triton's target for ``sm_80``, ``gfx942`` and the like.

    >>> gpu_target("sm_90").arch, gpu_target("gfx942").warp_size
    (90, 64)
    """
    family, _, number = architecture.partition("_")
    if family == "sm" and number.isdigit():
        return GPUTarget("cuda", int(number), 32)
    if architecture.startswith("gfx"):
        return GPUTarget("hip", architecture, targets.wave_size(architecture))
    raise ValueError(f"target must be like sm_80, sm_90 or gfx942; got {architecture!r}")


def _constants_have_attributes() -> bool:
    """True where Triton's front end notes attributes of compile-time arguments in its key.

    Releases differ; a wrong answer costs nothing but compiling once more.
    """
    try:
        return "constexpr" in getsource(JITFunction._pack_args).split("attrvals")[1]
    except (AttributeError, IndexError, OSError, TypeError):
        return True


def source_of(variant: Variant, architecture: str) -> ASTSource:
    """Build the source like Triton's front end, so that one cache serves both."""
    kernel = targets.KERNELS[variant.kernel]
    constants = variant.constants(architecture)
    names = {torch.int64: "*i64", torch.int32: "*i32"}
    names |= {dtype: f"*{element}" for dtype, element in _ELEMENTS.items()}
    types = {name: names[dtype] for name, dtype in variant.tensor_dtypes().items()}
    signature = {
        name: "constexpr" if name in constants else types[name] for name in kernel.arg_names
    }
    aligned: dict[tuple[int, ...], list] = {
        (index,): [["tt.divisibility", 16]] if name in types else []
        for index, name in enumerate(kernel.arg_names)
        if name in types or _constants_have_attributes()
    }
    return ASTSource(kernel, signature, constants, aligned)


@cache
def hash_triton() -> threading.Thread:
    """Start to hash Triton's library, 500 MB, which the first key of a process is made of.

    Kernels that are compiled side by side would each hash it; whoever can, starts this early.
    """
    thread = threading.Thread(target=getattr(runtime_cache, "triton_key", int), daemon=True)
    thread.start()
    return thread


def compile_offline(variant: Variant, architecture: str) -> Any:
    """Compile for a GPU that need not be here, into Triton's cache."""
    hash_triton().join()
    source = source_of(variant, architecture)
    options = variant.options(architecture)
    return triton.compile(source, target=gpu_target(architecture), options=options)


def compile_address_writer(count: int, architecture: str) -> Any:
    """Compile the kernel that writes so many addresses, into Triton's cache."""
    signature = {"table_ptr": "*i64", "addresses": ("i64",) * count}
    aligned: dict[tuple[int, ...], list] = {(0,): [["tt.divisibility", 16]]}
    aligned |= {(1, index): [] for index in range(count)}
    source = ASTSource(binding.store_addresses, signature, {}, aligned)
    return triton.compile(source, target=gpu_target(architecture), options=binding.WRITER_OPTIONS)


def compile_here(variant: Variant, device: torch.device) -> Any:
    """Compile for a GPU of this machine by Triton's front end."""
    kernel = targets.KERNELS[variant.kernel]
    architecture = targets.architecture_of(device)
    arguments = variant.tensor_dtypes() | variant.constants(architecture)
    values = [arguments[name] for name in kernel.arg_names]
    hash_triton().join()
    # which device is the current one is a matter of each thread
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        return kernel.warmup(*values, grid=(1,), **variant.options(architecture))


def side_by_side(
    wanted: Sequence[Variant], compile_one: Callable[[Variant], Result], quiet: float | None = None
) -> list[Result]:
    """Compile variants in as many threads as there are cores, the slowest first.

    Triton's passes and assemblers run without Python's lock. What takes longer than ``quiet``
    seconds says so on stderr.
    """
    quiet = QUIET_SECONDS if quiet is None else quiet
    distinct = dict.fromkeys(wanted)
    order = {name: place for place, name in enumerate(SLOWEST_FIRST)}
    queue = sorted(distinct, key=lambda variant: order.get(variant.kernel, len(order)))
    began = time.monotonic()
    with ThreadPoolExecutor(max(1, min(len(queue), os.cpu_count() or 1))) as pool:
        futures = {pool.submit(compile_one, variant): variant for variant in queue}
        done, left = wait(futures, timeout=quiet)
        if left:
            _say(
                f"compiling {len(queue)} GPU kernels, once for each GPU, dtype and Triton version "
                f"(python -m specgrad_kernels compile does it ahead of time)"
            )
        while left:
            done, left = wait(left, return_when=FIRST_COMPLETED)
            for future in done:
                name = futures[future].kernel + (" failed" if future.exception() else "")
                seconds = time.monotonic() - began
                _say(f"{len(queue) - len(left)} of {len(queue)}: {name}, {seconds:.0f} s")
    results = {}
    for future, variant in futures.items():
        # CPython 3.11 and 3.12 mistake threads that parse at one time for a tree without an end
        alone = isinstance(future.exception(), SystemError)
        results[variant] = compile_one(variant) if alone else future.result()
    return [results[variant] for variant in wanted]


def _say(line: str) -> None:
    print(f"specgrad: {line}", file=sys.stderr, flush=True)
