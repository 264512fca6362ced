"""Launches as calls that carry their arguments: Triton's front end runs once, not at every call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from specgrad_kernels.backends.triton import interpreting

INTERPRETING = interpreting()
"""Decided when the kernels are decorated; it cannot change later."""


def bind(
    kernel: Any, grid: tuple[int], stream: int, arguments: dict[str, Any], *last: Any
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
