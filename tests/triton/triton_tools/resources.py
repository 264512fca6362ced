"""Writes the table of registers, spills and shared memory: ``python resources.py TABLE.csv``."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

from specgrad_kernels.spec import BOUNDARIES, FilterSpec
from triton_tools.lists import MODELS
from triton_tools.offline import TARGETS, Resources, Variant, resources, variants

COLUMNS = (
    "kernel",
    "sizes",
    "target",
    "arithmetic",
    "warps",
    "registers",
    "spilled_bytes",
    "shared_bytes",
)


def model_variants() -> list[Variant]:
    """Every kernel of every plan of the five models, in float32, and two they do not need."""
    specs = [FilterSpec()] + [
        FilterSpec(method=method, boundary=boundary)
        for method in ("lap", "gaussian")
        for boundary in BOUNDARIES
    ]
    found = {
        variant
        for spec in specs
        for lengths in MODELS.values()
        for variant in variants(lengths, spec)
    }
    found |= set(variants([433], FilterSpec())) | set(variants([65536], FilterSpec()))
    return sorted(found, key=lambda variant: (variant.kernel, variant.label))


def row_of(variant: Variant, target: str, cost: Resources) -> tuple[str, ...]:
    """The table's row for one kernel on one target."""
    return (
        variant.kernel,
        variant.label,
        target,
        cost.precision,
        str(cost.warps),
        str(cost.registers),
        str(cost.spilled_bytes),
        str(cost.shared_bytes),
    )


def rows() -> list[tuple[str, ...]]:
    """One row per kernel and target."""
    return [
        row_of(variant, target, resources(variant, target))
        for variant in model_variants()
        for target in TARGETS
    ]


def write(path: Path) -> None:
    """Replace the table in one step."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows())
    os.replace(temporary, path)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
