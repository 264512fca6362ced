"""Sizes, warps, pipeline stages and arithmetic per kernel, decided by rule and not by timing.

The rule follows what compilation and counting show without a GPU (``docs/gpu_resources.csv``,
``docs/gpu_counts.csv``):

- ``spread`` and ``interpolate`` give a thread 16 bytes of a cell, or all of a shorter one:
  registers do not hold several. In half precision these are eight samples, and NVIDIA's assembler
  keeps them in registers only where it may use 168.
- ``filter_grid`` and ``second_factor`` give a thread eight values: one lane is one thread. They
  compute in float64 where a GPU is at least half as fast at it, and so does ``spread`` the sum of a
  cell: a rounding there is one of the whole result.
- ``subtract_smooth`` gives a thread of NVIDIA's 16 samples in runs of 16 bytes or more; the runs
  share the weights. In float64 it is 8: 16 would not fit in registers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from specgrad_kernels.backends.triton import averages, cells, grid_fft

_BAND = (cells.spread, grid_fft.second_factor, grid_fft.filter_grid, cells.interpolate)
_AVERAGES = (averages.save_borders, averages.subtract_smooth, averages.subtract_means)
KERNELS: dict[str, Any] = {kernel.__name__: kernel for kernel in (*_BAND, *_AVERAGES)}
COARSE = ("filter_grid", "second_factor")
"""Kernels that see no gradient."""
WRITES_GRADIENTS = ("interpolate", "subtract_means", "subtract_smooth")
FAST_AT_DOUBLE = ("sm_80", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950")
"""Architectures that do float64 at no less than half the rate of float32; others at a 64th."""
LANES = {False: 64, True: 256}
"""Lanes of ``filter_grid``: more where a line needs them."""
MIDDLE_LANES = 256
TILE_SAMPLES = 512
"""Samples that a program of ``spread`` loads at a time."""
SPAN = 256
"""Samples that ``save_borders`` copies."""
BLOCK = {False: 1024, True: 512}
"""Samples that ``subtract_means`` has at a time."""


def rows_of(hop: int) -> int:
    """Rows of four cells in a program of ``spread`` and ``interpolate``."""
    return TILE_SAMPLES // hop


def tile_of(radius: int) -> int:
    """Samples of a program of ``subtract_smooth``."""
    return 2048 if radius <= 64 else 4096


def wave_size(architecture: str) -> int:
    """Threads of a warp: 64 on AMD's data centre GPUs, 32 elsewhere.

    >>> wave_size("gfx942"), wave_size("gfx1100"), wave_size("sm_80")
    (64, 32, 32)
    """
    return 64 if architecture.startswith("gfx9") else 32


def options_of(
    kernel: str, sizes: dict[str, Any], dtype: torch.dtype, architecture: str
) -> dict[str, Any]:
    """Launch options of one kernel at its compile-time sizes."""
    warps = 4
    wave = wave_size(architecture)
    nvidia = architecture.startswith("sm_")
    many = {"maxnreg": 168} if nvidia and dtype.itemsize == 2 else {}
    registers = {}
    if kernel in ("spread", "interpolate"):
        samples = min(16 // dtype.itemsize, sizes["HOP"])
        warps = max(1, TILE_SAMPLES // (wave * samples))
        registers = many if kernel == "interpolate" and samples == 8 else {}
    elif kernel in COARSE:
        warps = max(1, sizes["LANES"] // wave)
    elif kernel == "save_borders":
        warps = 1
    elif kernel == "subtract_smooth":
        registers = many
        warps = sizes["TILE"] // (256 if dtype is torch.float64 else 512)
    return {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": True, **registers}


def constants_of(
    kernel: str, sizes: dict[str, Any], dtype: torch.dtype, architecture: str
) -> dict[str, Any]:
    """Every compile-time argument of one kernel."""
    real = tl.float64 if dtype is torch.float64 else tl.float32
    finest = tl.float64 if solves_in_float64(dtype, architecture) else real
    known = {
        "ELEMENT": getattr(tl, str(dtype).removeprefix("torch.")),
        "REAL": finest if kernel in COARSE else real,
        "SUM": finest,
        "RUN": 8 if dtype.itemsize == 2 else 4,  # samples that a thread smooths together
        **sizes,
    }
    return {name: known[name] for name in KERNELS[kernel].arg_names if name in known}


def architecture_of(device: torch.device) -> str:
    """Name of a GPU's architecture; what stands in for a GPU is an A100."""
    if device.type != "cuda":
        return "sm_80"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is None:
        return f"sm_{properties.major}{properties.minor}"
    return str(properties.gcnArchName).split(":")[0]


def solves_in_float64(dtype: torch.dtype, architecture: str) -> bool:
    """True where grids of float32 gradients are filtered in float64."""
    return dtype is torch.float32 and architecture in FAST_AT_DOUBLE


def all_solve_in_float64(dtype: torch.dtype) -> bool:
    """True where every GPU here does, or without one the A100 that stands in for it."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.device("cuda", index) for index in range(count)] or [torch.device("cpu")]
    return all(solves_in_float64(dtype, architecture_of(device)) for device in devices)
