"""Larger tiles for the interpreter, whose time goes with the number of steps, not their size."""

from __future__ import annotations

from specgrad_kernels.backends.triton import targets

_LARGE = {
    "spread_columns": {"CHUNK": 64, "DEPTH": 512},
    "transform_middle": {"DEPTH": 64},
    "solve_rows": {"BINS": 256, "DEPTH": 256},
    "subtract_columns": {"CHUNK": 64, "SPAN": 256},
    "project_waves": {"BINS": 64, "SPAN": 1024},
    "save_borders": {"SPAN": 4096},
    "subtract_smooth": {"DEPTH": 128},
}
_sizes_of = targets.sizes_of


def large_sizes(kernel: str, double: bool) -> dict[str, int]:
    """In the place of ``targets.sizes_of``."""
    return _sizes_of(kernel, double) | _LARGE[kernel]
