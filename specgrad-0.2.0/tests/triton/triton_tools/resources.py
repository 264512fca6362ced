"""Writes the table of registers, spills and shared memory: ``python resources.py TABLE.csv``."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from specgrad_kernels.checks import FLOAT_DTYPES
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


def calls() -> Iterator[tuple[list[int], FilterSpec]]:
    """Lengths and filters of calls that together launch every kernel in every form."""
    for lengths in MODELS.values():
        yield lengths, FilterSpec()
    for ratio in (0.02, 0.1, 0.2, 0.5):
        yield [36864], FilterSpec(ratio=ratio)
    for method in ("lap", "gaussian"):
        yield [432], FilterSpec(method)  # in one tile
        for boundary in BOUNDARIES:
            yield [36864], FilterSpec(method, boundary=boundary)
    yield [36864], FilterSpec("centralize")


def all_variants() -> list[Variant]:
    """Every kernel in every form, in every dtype."""
    found = {
        variant
        for lengths, spec in calls()
        for dtype in FLOAT_DTYPES
        for variant in variants(lengths, spec, dtype)
    }
    return sorted(found, key=lambda variant: (variant.kernel, variant.label, variant.dtype_name))


def row_of(variant: Variant, target: str, cost: Resources) -> tuple[str, ...]:
    """The table's row for one kernel on one target."""
    return (
        variant.kernel,
        variant.label,
        variant.dtype_name,
        target,
        str(cost.warps),
        str(cost.registers),
        str(cost.spilled_bytes),
        str(cost.shared_bytes),
    )


def rows() -> Iterator[tuple[str, ...]]:
    """One row per kernel and target."""
    for variant in all_variants():
        for target in TARGETS:
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
