"""What a plan can say about itself before it runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specgrad_kernels import design
from specgrad_kernels.backends import torch_ref
from specgrad_kernels.backends.triton import schedule
from specgrad_kernels.backends.triton.grid import plan_grid
from specgrad_kernels.backends.triton.signals import Signal
from specgrad_kernels.backends.triton.tables import is_double
from specgrad_kernels.spec import FilterSpec


def plain_signal(d: int, index: int) -> Signal:
    """A contiguous signal that is a tensor of its own."""
    return Signal(index, 0, d, (1, 1, 1, d), (0, 0, 0, 1), d)


def explain(spec: FilterSpec, d: int, index: int, dtype: torch.dtype) -> tuple[str, float, int]:
    """Strategy, error bound and workspace in bytes of one layer.

    >>> explain(FilterSpec(), 36864, 0, torch.float32)[0]
    'band 8 x 9 x 512'
    >>> explain(FilterSpec(), 433, 0, torch.float32)[0]
    'circulant 1 x 433'
    """
    double = is_double(dtype)
    strategy = schedule.strategy_of(spec, d, index, double)
    rounding = 2 * torch.finfo(dtype).eps
    if strategy in ("identity", "stacked"):
        name, bound, workspace = torch_ref.explain(spec, d, index, dtype)
        return name, bound, 0 if strategy == "identity" else workspace
    if strategy == "means":
        return "means", design.rounding(double) + design.stored_rounding(dtype), 0
    built = schedule.build([plain_signal(d, index)], spec, double)
    element = torch.empty((), dtype=dtype).element_size()
    workspace = built.workspace * (8 if double else 4)
    workspace += built.borders * element
    if strategy == "detrend":
        return f"tiles, radius {built.radius}", rounding, workspace
    grid = plan_grid(d, spec.cutoff(d, index), double)
    assert grid is not None
    half = rounding if element == 2 else 0.0
    return grid.describe(), grid.error + half, workspace


def launches(spec: FilterSpec, layers: Sequence[tuple[int, torch.dtype]]) -> str:
    """How many kernels one call launches, and what is left to PyTorch.

    >>> launches(FilterSpec(), [(36864, torch.float32)] * 5)
    '3 launches'
    >>> launches(FilterSpec(), [(36864, torch.float32), (36871, torch.float32)])
    '3 launches and 1 stacked torch.fft'
    """
    groups: dict[torch.dtype, list[Signal]] = {}
    stacked = set()
    for index, (d, dtype) in enumerate(layers):
        strategy = schedule.strategy_of(spec, d, index, is_double(dtype))
        if strategy == "stacked":
            stacked.add((d, dtype, spec.cutoff(d, index)))
        elif strategy != "identity":
            groups.setdefault(dtype, []).append(plain_signal(d, index))
    count = sum(
        len(schedule.build(signals, spec, is_double(dtype)).launches)
        for dtype, signals in groups.items()
    )
    own = f"{count} launch{'' if count == 1 else 'es'}"
    return f"{own} and {len(stacked)} stacked torch.fft" if stacked else own
