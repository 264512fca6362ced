"""Compiled kernels bound to their arguments: Triton's front end has no part in a call.

The table of gradient addresses on the device is written by such launches too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.compiler import ASTSource

from specgrad_kernels.backends.triton import compiling, interpreting
from specgrad_kernels.backends.triton.targets import architecture_of

INTERPRETING = interpreting()
"""Decided when the kernels are decorated; it cannot change later."""
MAX_ADDRESSES = 256
"""Addresses that one launch carries; 4 KB of arguments is the least that every GPU takes."""
_MIN_ADDRESSES = 8


def bind(
    stream: int, kernel: Any, programs: int, arguments: Mapping[str, Any]
) -> Callable[..., None]:
    """Load a compiled kernel and return a call that launches it on ``stream`` of this device.

    ``arguments`` are the kernel's first ones, in their order; the call is given the others, and
    keeps tensors alive. Interpreted, the kernel is the function itself.
    """
    if INTERPRETING:
        bound = partial(kernel[(programs,)], *arguments.values())
    else:
        launch = kernel.run  # loads the code, after which ``function`` is known
        bound = partial(
            launch,
            *(programs, 1, 1, stream, kernel.function, kernel.packed_metadata),
            *(None, None, None),  # metadata and hooks for profilers inside Triton
            *(
                value.data_ptr() if isinstance(value, Tensor) else value
                for value in arguments.values()
            ),
        )
    # the function is a number: with the last reference to its kernel, Triton unloads the code
    bound.kernel = kernel  # type: ignore[attr-defined]
    bound.tensors = {  # type: ignore[attr-defined]
        name: value for name, value in arguments.items() if isinstance(value, Tensor)
    }
    return bound


@triton.jit
def store_addresses(table_ptr, addresses):
    """Write addresses that came as arguments."""
    for index in tl.static_range(len(addresses)):
        tl.store(table_ptr + index, addresses[index].to(tl.int64))


def compile_writer(size: int, architecture: str) -> Any:
    """Compile the kernel that writes so many addresses."""
    signature = {"table_ptr": "*i64", "addresses": ("i64",) * size}
    source = ASTSource(store_addresses, signature, {}, {(0,): [["tt.divisibility", 16]]})
    return compiling.compile_source(source, {"num_warps": 1}, architecture)


@cache
def writer_here(size: int, device: torch.device) -> Any:
    """The kernel that writes so many addresses, compiled once for each GPU of this machine."""
    return store_addresses if INTERPRETING else compile_writer(size, architecture_of(device))


def addresses_per_launch(count: int) -> list[int]:
    """Addresses of each launch: powers of two, so that few kernels serve every count.

    >>> addresses_per_launch(20), addresses_per_launch(117), addresses_per_launch(300)
    ([32], [128], [256, 64])
    """
    whole, rest = divmod(count, MAX_ADDRESSES)
    last = [max(_MIN_ADDRESSES, 1 << (rest - 1).bit_length())] if rest else []
    return [MAX_ADDRESSES] * whole + last


class AddressTable:
    """Addresses on the device, written by kernels that carry them as arguments.

    No host memory is read after the call, so nothing waits, writing keeps its place among the
    launches of the stream, and a CUDA graph replays it.
    """

    def __init__(self, count: int, device: torch.device, stream: int) -> None:
        sizes = addresses_per_launch(count)
        self._length = sum(sizes)
        self.tensor = torch.empty(self._length, dtype=torch.int64, device=device)
        self._writes = []
        for first, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
            write = bind(stream, writer_here(size, device), 1, {"table_ptr": self.tensor[first:]})
            self._writes.append((write, first, first + size))

    def write(self, addresses: Sequence[int]) -> None:
        """Replace the addresses; no more than the table was made for."""
        padded = [*addresses, *[0] * (self._length - len(addresses))]
        for write, first, end in self._writes:
            write(tuple(padded[first:end]))
