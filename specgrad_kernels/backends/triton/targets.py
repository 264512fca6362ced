"""Sizes, warps, pipeline stages and arithmetic per kernel, decided by rule and not by timing.

The rule follows what compilation shows without a GPU (``docs/gpu_resources.csv``):

- Arithmetic is ``tf32x3`` on NVIDIA: three tensor-core products restore float32 accuracy and
  keep the operands of a product in few registers, where ``ieee`` spills. AMD has no such mode
  and needs none: ``ieee`` there, and for float64 everywhere.
- A product takes 16 or 32 terms at a time; deeper ones spill.
- Four warps where they suffice, eight where the accumulators of four do not fit. Rows of 256
  take eight warps and no pipeline on NVIDIA, sixteen on AMD.
"""

from __future__ import annotations

from typing import Any

import torch

_EIGHT_WARPS = ("spread_columns", "subtract_columns", "subtract_smooth")


def sizes_of(kernel: str, double: bool) -> dict[str, int]:
    """Compile-time sizes that do not depend on the layers; float64 takes half."""
    half = 2 if double else 1
    sizes = {
        "spread_columns": {"COLUMNS": 64, "CHUNK": 32 // half, "DEPTH": 32 // half},
        "transform_middle": {"MIDDLE": 64, "DEPTH": 16},
        "solve_rows": {"BINS": 16, "DEPTH": 16},
        "subtract_columns": {"COLUMNS": 64, "CHUNK": 16, "SPAN": 32 // half},
        "project_waves": {"BINS": 16, "SPAN": 128 // (half * half)},
        "save_borders": {"SPAN": 512},
        "subtract_smooth": {"LINE": 32, "DEPTH": 32 // half},
    }
    return sizes[kernel]


def options_of(kernel: str, sizes: dict[str, Any], nvidia: bool, double: bool) -> dict[str, Any]:
    """Launch options of one kernel at its compile-time sizes."""
    rows = sizes.get("ROWS", 0)
    few_lines = double and sizes.get("LINES", 128) <= 64
    warps, stages = 4, 2
    if rows > 64 or (kernel in _EIGHT_WARPS and not few_lines):
        warps = 8
    if rows > 128:
        warps, stages = (8, 1) if nvidia else (16, 2)
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}


def precision_of(nvidia: bool, double: bool) -> str:
    """Arithmetic of the matrix products."""
    return "tf32x3" if nvidia and not double else "ieee"


def is_nvidia() -> bool:
    """Whether this PyTorch drives NVIDIA GPUs."""
    return torch.version.hip is None
