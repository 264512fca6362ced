"""Finds the barriers that the kernels ask for, takes one away, and looks for the race.

The compiler adds barriers of its own where it exchanges values through shared memory, in some
dtypes and not in others; by luck they may hold apart what nothing in the source does. Global memory
is therefore judged without them: what the source asks for must be enough, and all of it needed.
"""

from __future__ import annotations

import ast
import importlib
import linecache
import pkgutil
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from specgrad_kernels.backends import triton as package
from specgrad_kernels.backends.triton import fields
from specgrad_kernels.spec import FilterSpec
from triton_tools.compare import random_grads
from triton_tools.execute import execute
from triton_tools.ptx.machine import Memory, PtxKernel
from triton_tools.warps import Race, run_together

_CALL = "block_barrier()"
_ASKED = re.compile(r"\btl\.(debug_)?barrier\(\)")
_PLACE = re.compile(r"\s*\.loc\s+(\d+) (\d+)")


@dataclass(frozen=True)
class Case:
    """A short call in which every barrier of a kernel decides something."""

    kernel: str
    length: int
    dtype: torch.dtype = torch.float32
    wide: bool = True

    @property
    def name(self) -> str:
        """Name among the cases of its kernel."""
        dtype = str(self.dtype).removeprefix("torch.")
        return dtype if self.wide else f"{dtype} sample by sample"

    @property
    def spec(self) -> FilterSpec:
        """The filter that launches the kernel."""
        return FilterSpec() if self.kernel == "interpolate" else FilterSpec("lap", window=25)

    def grads(self) -> list[Tensor]:
        """One gradient, which is served in whole vectors only where it begins at 16 bytes."""
        first = 0 if self.wide else 1
        return [grad[first:] for grad in random_grads([self.length + first], self.dtype)]


CASES = [
    Case(kernel, length, dtype, wide)
    for kernel, length in (("interpolate", 432), ("subtract_smooth", 400))
    for dtype in (torch.float32, torch.float64)
    for wide in (True, False)
]
"""At these lengths a signal's two ends belong to different warps."""


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
        if name != fields.block_barrier.__name__
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


def only_asked(ptx: str) -> str:
    """PTX without the barriers for which no line of the source asks."""
    files = dict(re.findall(r'\.file\s+(\d+) "(.*?)"', ptx))
    kept, asked = [], False
    for line in ptx.splitlines():
        place = _PLACE.match(line)
        if place:
            asked = bool(_ASKED.search(linecache.getline(files[place[1]], int(place[2]))))
        if asked or "bar.sync" not in line:
            kept.append(line)
    return "\n".join(kept)


def run_asked(program: PtxKernel, grid: int, values: Sequence[int], memory: Memory) -> int:
    """Global memory watched, with none but the barriers that the source asks for."""
    own = PtxKernel(only_asked(program.text), program.shared_bytes)
    return run_together(own, grid, values, memory, ("global",))


def found_without(case: Case, number: int) -> bool:
    """Take a barrier away; True where the race is found that it prevents."""
    with without(case.kernel, number):
        try:
            execute(case.grads(), case.spec, run=run_asked, only=case.kernel)
        except Race:
            return True
    return False
