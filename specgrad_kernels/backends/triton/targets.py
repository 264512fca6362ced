"""Sizes, warps, pipeline stages and arithmetic per kernel, decided by rule and not by timing.

The rule follows what compilation and counting show without a GPU (``docs/gpu_resources.csv``,
``docs/gpu_counts.csv``):

- ``spread`` and ``interpolate`` give a thread 16 bytes of a cell. In half precision these are
  eight samples, and NVIDIA's assembler keeps them in registers only where it may use 168.
- ``solve`` and ``middle`` give a thread eight values: one lane is one thread. They compute in
  float64 where a GPU is at least half as fast at it, and so does ``spread`` the sum of a cell: a
  rounding there is one of the whole result.
- The detrend multiplies matrices: ``tf32x3`` on NVIDIA (three tensor-core products restore
  float32 accuracy, where ``ieee`` spills), ``ieee`` on AMD and for float64; 16 or 32 terms at
  a time; eight warps, four where the tile is small.
"""

from __future__ import annotations

from typing import Any

import torch

FAST_AT_DOUBLE = ("sm_80", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950")
"""Architectures that do float64 at no less than half the rate of float32; others at a 64th."""
MIDDLE_LANES = 256
SHORT_WINDOW = 8
"""Width of a window that has one tap only: any that the kernels know would do."""
TILE_SAMPLES = 512
"""Samples that a program of ``spread`` loads at a time."""


def rows_of(hop: int) -> int:
    """Rows of four cells in a program of ``spread`` and ``interpolate``."""
    return TILE_SAMPLES // hop


def lanes_of(wide: bool) -> int:
    """Lanes of ``solve``: more where a line needs them."""
    return 256 if wide else 64


def sizes_of(kernel: str, double: bool) -> dict[str, int]:
    """Compile-time sizes that do not depend on the layers, of kernels that subtract averages."""
    half = 2 if double else 1
    sizes = {
        "save_borders": {"SPAN": 512},
        "subtract_means": {"BLOCK": 1024 // half},
        "subtract_smooth": {"LINE": 32, "DEPTH": 32 // half},
    }
    return sizes[kernel]


def options_of(kernel: str, sizes: dict[str, Any], nvidia: bool, itemsize: int) -> dict[str, Any]:
    """Launch options of one kernel at its compile-time sizes; ``itemsize`` is a sample's bytes."""
    warps, stages = 4, 1
    lanes = 32 if nvidia else 64
    registers = {}
    if kernel in ("spread", "interpolate"):
        warps = itemsize
        if kernel == "interpolate" and nvidia and itemsize == 2:
            registers = {"maxnreg": 168}
    elif kernel in ("solve", "middle"):
        warps = max(1, sizes["LANES"] // lanes)
    elif kernel == "subtract_smooth":
        warps = 4 if itemsize == 8 and sizes["LINES"] <= 64 else 8
        stages = 2
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True, **registers}


def precision_of(nvidia: bool, double: bool) -> str:
    """Arithmetic of the matrix products."""
    return "tf32x3" if nvidia and not double else "ieee"


def is_nvidia() -> bool:
    """Whether this PyTorch drives NVIDIA GPUs."""
    return torch.version.hip is None


def architecture_of(device: torch.device) -> str:
    """Name of a GPU's architecture; what stands in for a GPU is an A100."""
    if device.type != "cuda":
        return "sm_80"
    properties = torch.cuda.get_device_properties(device)
    if is_nvidia():
        return f"sm_{properties.major}{properties.minor}"
    return str(properties.gcnArchName).split(":")[0]


def solves_finer(dtype: torch.dtype, architecture: str) -> bool:
    """Whether grids of such gradients are solved in float64, which is finer than what they hold."""
    return dtype is torch.float32 and architecture in FAST_AT_DOUBLE


def all_solve_finer(dtype: torch.dtype) -> bool:
    """Whether every GPU here does, or without one what stands in for it."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.device("cuda", index) for index in range(count)] or [torch.device("cpu")]
    return all(solves_finer(dtype, architecture_of(device)) for device in devices)
