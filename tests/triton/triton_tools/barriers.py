"""Finds the barriers that the kernels ask for, takes one away, and looks for the race."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton.runtime.jit import JITFunction

from specgrad_kernels.backends import triton as package
from specgrad_kernels.spec import FilterSpec
from triton_tools.compare import random_grads
from triton_tools.execute import execute
from triton_tools.warps import Race, run_together

_CALL = "tl.debug_barrier()"
CASES = {
    "interpolate": ([432], FilterSpec()),
    "subtract_smooth": ([304], FilterSpec("lap", window=25)),
}
"""A short call in which the barriers of each kernel decide something."""


def device_functions() -> dict[str, JITFunction]:
    """Everything that is compiled, kernels and what they call."""
    found = {}
    for module in pkgutil.iter_modules(package.__path__):
        names = vars(importlib.import_module(f"{package.__name__}.{module.name}"))
        found |= {name: value for name, value in names.items() if isinstance(value, JITFunction)}
    return found


def barriers() -> list[tuple[str, int]]:
    """Every barrier: the function and its number there."""
    return [
        (name, number)
        for name, function in sorted(device_functions().items())
        for number in range(ast.unparse(ast.parse(function.src)).count(_CALL))
    ]


@contextmanager
def without(name: str, number: int) -> Iterator[None]:
    """The kernels as they would be without one barrier."""
    function = device_functions()[name]
    before = function.src
    parts = before.split(_CALL)
    _replace(function, _CALL.join(parts[: number + 1]) + "pass" + _CALL.join(parts[number + 1 :]))
    try:
        yield
    finally:
        _replace(function, before)


def _replace(function: Any, source: str) -> None:
    function._unsafe_update_src(source)
    for other in device_functions().values():
        other.hash = None  # who calls the function is another kernel now


def found_without(kernel: str, number: int) -> bool:
    """Whether the race is found that a barrier prevents, once the barrier is taken away."""
    lengths, spec = CASES[kernel]
    with without(kernel, number):
        try:
            execute(random_grads(lengths), spec, run=run_together, only=kernel)
        except Race as race:
            return "global memory" in str(race)
    return False
