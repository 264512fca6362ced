"""What a plan can say about itself before it runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specgrad_kernels import design
from specgrad_kernels.backends import torch_ref
from specgrad_kernels.backends.triton import schedule, targets
from specgrad_kernels.backends.triton.grid import plan_grid
from specgrad_kernels.backends.triton.signals import Signal, plain_signal
from specgrad_kernels.backends.triton.tables import is_double
from specgrad_kernels.kinds import LocalAverage
from specgrad_kernels.spec import FilterSpec


def explain(spec: FilterSpec, d: int, index: int, dtype: torch.dtype) -> tuple[str, float, int]:
    """Strategy, error bound and workspace in bytes of one layer.

    >>> explain(FilterSpec(), 36864, 0, torch.float32)[0]
    'band 8 x 9 x 512'
    >>> explain(FilterSpec(), 433, 0, torch.float32)[0]
    'circulant 1 x 433'
    """
    double = is_double(dtype)
    wanted = schedule.numbers_of(spec, d, index)
    strategy = schedule.strategy_of(wanted, d, double)
    if wanted is None or strategy == "stacked":
        return torch_ref.explain(spec, d, index, dtype)
    built = schedule.build([plain_signal(d, index)], spec, double)
    workspace = built.workspace * (8 if double else 4) + built.borders * dtype.itemsize
    if isinstance(wanted, LocalAverage):
        name = f"tiles, radius {wanted.radius}"
        bound = wanted.norm * design.average_rounding(double, wanted.radius, wanted.box)
    elif strategy == "means":
        name, bound = "means", design.rounding(double)
    else:
        removed = schedule.removed_by(wanted)
        grid = plan_grid(d, len(removed), double)
        assert grid is not None
        name, bound = grid.describe(), grid.error(targets.all_solve_finer(dtype))
        bound *= design.largest_factor(removed)
    return name, bound + design.stored_rounding(dtype, wanted.norm), workspace


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
        wanted = schedule.numbers_of(spec, d, index)
        strategy = schedule.strategy_of(wanted, d, is_double(dtype))
        if strategy == "stacked":
            stacked.add((d, dtype, spec.kind.parameters(spec, (d,), index)))
        elif strategy != "identity":
            groups.setdefault(dtype, []).append(plain_signal(d, index))
    count = sum(
        len(schedule.build(signals, spec, is_double(dtype)).launches)
        for dtype, signals in groups.items()
    )
    own = f"{count} launch{'' if count == 1 else 'es'}"
    return f"{own} and {len(stacked)} stacked torch.fft" if stacked else own
