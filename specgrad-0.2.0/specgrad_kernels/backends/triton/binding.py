"""Launches bound to their arguments: Triton's front end runs once, not at every call.

The table of gradient addresses on the device is written by such launches too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specgrad_kernels.backends.triton import interpreting

INTERPRETING = interpreting()
"""Decided when the kernels are decorated; it cannot change later."""
MAX_ADDRESSES = 256
"""Addresses that one launch carries; 4 KB of arguments is the least that every GPU takes."""
_MIN_ADDRESSES = 8
_EXAMPLE_ADDRESS = (1 << 40) + 1
WRITER_OPTIONS = {"num_warps": 1, "enable_fp_fusion": True}


def bind(
    stream: int, kernel: Any, grid: tuple[int], arguments: dict[str, Any], *last: Any
) -> Callable[..., None]:
    """Return a call that launches ``kernel`` on ``stream`` of the current device, loaded now.

    ``last`` are examples of the kernel's last arguments, which every call then gives. Tensors
    go in as addresses: the owner of the call keeps them alive too.
    """
    values = [arguments[name] for name in kernel.arg_names if name in arguments]
    if INTERPRETING:
        return partial(kernel[grid], *values)
    options = {name: arguments[name] for name in arguments if name not in kernel.arg_names}
    compiled = kernel.warmup(*values, *last, grid=grid, **options)
    launch = compiled.run  # loads the code, after which ``function`` is known
    bound = partial(
        launch,
        *(grid[0], 1, 1, stream, compiled.function, compiled.packed_metadata),
        *(None, None, None),  # metadata and hooks for profilers inside Triton
        *(value.data_ptr() if isinstance(value, Tensor) else value for value in values),
    )
    # the function is a number: with the last reference to its kernel, Triton unloads the code
    bound.kernel = compiled  # type: ignore[attr-defined]
    return bound


@triton.jit(do_not_specialize=("addresses",))
def store_addresses(table_ptr, addresses):
    """Write addresses that came as arguments."""
    for index in tl.static_range(len(addresses)):
        tl.store(table_ptr + index, addresses[index].to(tl.int64))


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
            part = {"table_ptr": self.tensor[first:], **WRITER_OPTIONS}
            write = bind(stream, store_addresses, (1,), part, (_EXAMPLE_ADDRESS,) * size)
            self._writes.append((write, first, first + size))

    def write(self, addresses: Sequence[int]) -> None:
        """Replace the addresses; no more than the table was made for."""
        padded = [*addresses, *[0] * (self._length - len(addresses))]
        for write, first, end in self._writes:
            write(tuple(padded[first:end]))
