"""Writes the table of registers, spills and shared memory: ``python resources.py TABLE.csv``."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from specgrad_kernels.backends.triton.targets import COARSE
from specgrad_kernels.spec import BOUNDARIES, FilterSpec
from triton_tools.lists import MODELS
from triton_tools.offline import TARGETS, Resources, Variant, resources, variants

COLUMNS = (
    "kernel",
    "sizes",
    "dtype",
    "target",
    "warps",
    "registers",
    "spilled_bytes",
    "shared_bytes",
)


def model_variants() -> list[Variant]:
    """Every kernel of every plan of the five models; those of ``fft`` in every dtype."""
    found = {
        variant
        for lengths in MODELS.values()
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        for variant in variants(lengths, FilterSpec(), dtype)
        if dtype.itemsize > 2 or variant.kernel not in COARSE
    }
    found |= {
        variant
        for lengths in MODELS.values()
        for method in ("lap", "gaussian")
        for boundary in BOUNDARIES
        for variant in variants(lengths, FilterSpec(method=method, boundary=boundary))
    }
    found |= set(variants([36864], FilterSpec("centralize")))
    return sorted(found, key=lambda variant: (variant.kernel, variant.label, variant.name))


def row_of(variant: Variant, target: str, cost: Resources) -> tuple[str, ...]:
    """The table's row for one kernel on one target."""
    return (
        variant.kernel,
        variant.label,
        variant.name,
        target,
        str(cost.warps),
        str(cost.registers),
        str(cost.spilled_bytes),
        str(cost.shared_bytes),
    )


def needed() -> list[tuple[Variant, str]]:
    """What the table lists: every kernel on sm_80, the larger ones on all targets; of those that
    see no gradient, slow to compile, the float64 form on sm_80 alone."""
    return [
        (variant, target)
        for variant in model_variants()
        for target in TARGETS
        if target == "sm_80"
        or variant.kernel in ("spread", "interpolate", "subtract_smooth")
        or (variant.kernel in COARSE and variant.dtype is torch.float32)
    ]


def rows() -> Iterator[tuple[str, ...]]:
    """One row per kernel and target."""
    for variant, target in needed():
        yield row_of(variant, target, resources(variant, target))


def write(path: Path) -> None:
    """Replace the table in one step."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows():
            writer.writerow(row)
            file.flush()
    os.replace(temporary, path)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
