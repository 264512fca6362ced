"""Launches as calls that carry their arguments: Triton's front end runs once, not at every call.

The table of gradient addresses on the device is written by such calls too.
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
MOST = 256
"""Addresses that one launch carries; 4 KB of arguments is the least that every GPU takes."""
_FEWEST = 8
_EXAMPLE = (1 << 40) + 1


def bind(
    stream: int, kernel: Any, grid: tuple[int], arguments: dict[str, Any], *last: Any
) -> Callable[..., None]:
    """A call that launches ``kernel`` on ``stream`` of the current device, compiled and loaded now.

    ``last`` are examples of the kernel's last arguments, which every call then gives. Tensors
    go in as addresses: whoever keeps the call keeps them too.
    """
    values = [arguments[name] for name in kernel.arg_names if name in arguments]
    if INTERPRETING:
        return partial(kernel[grid], *values)
    options = {name: arguments[name] for name in arguments if name not in kernel.arg_names}
    compiled = kernel.warmup(*values, *last, grid=grid, **options)
    launch = compiled.run  # loads the code, after which ``function`` is known
    return partial(
        launch,
        *(grid[0], 1, 1, stream, compiled.function, compiled.packed_metadata),
        *(None, None, None),  # metadata and hooks for profilers inside Triton
        *(value.data_ptr() if isinstance(value, Tensor) else value for value in values),
    )


@triton.jit(do_not_specialize=("addresses",))
def store_addresses(table, addresses):
    """Write addresses that came as arguments."""
    for index in tl.static_range(len(addresses)):
        tl.store(table + index, addresses[index].to(tl.int64))


def sizes_of_launches(count: int) -> list[int]:
    """Addresses of each launch: powers of two, so that few kernels serve every count.

    >>> sizes_of_launches(20), sizes_of_launches(117), sizes_of_launches(300)
    ([32], [128], [256, 64])
    """
    whole, rest = divmod(count, MOST)
    last = [max(_FEWEST, 1 << (rest - 1).bit_length())] if rest else []
    return [MOST] * whole + last


class AddressTable:
    """Addresses on the device, written by kernels that carry them as arguments.

    No host memory is read after the call, so nothing waits, writing keeps its place among the
    launches of the stream, and a CUDA graph replays it.
    """

    def __init__(self, count: int, device: torch.device, stream: int) -> None:
        sizes = sizes_of_launches(count)
        self.tensor = torch.empty(sum(sizes), dtype=torch.int64, device=device)
        self._padding = [0] * (sum(sizes) - count)
        self._writes = []
        for first, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
            part = {"table": self.tensor[first:], "num_warps": 1, "enable_fp_fusion": True}
            write = bind(stream, store_addresses, (1,), part, (_EXAMPLE,) * size)
            self._writes.append((write, first, first + size))

    def write(self, addresses: Sequence[int]) -> None:
        """Put these addresses, as many as the table was made for, in the place of the old ones."""
        padded = [*addresses, *self._padding]
        for write, first, end in self._writes:
            write(tuple(padded[first:end]))
