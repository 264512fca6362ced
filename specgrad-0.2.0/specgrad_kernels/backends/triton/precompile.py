"""``python -m specgrad_kernels compile``: fill Triton's cache ahead of the first call.

No GPU is needed. Triton finds the kernels where ``TRITON_CACHE_DIR`` names the same folder at the
same path, Triton and this package have the same versions, and the GPU is the one that was named.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

import torch

from specgrad_kernels.checks import FLOAT_DTYPES
from specgrad_kernels.spec import FilterSpec

LAYERS = {
    "resnet20": [432] + [2304] * 6 + [4608] + [9216] * 5 + [18432] + [36864] * 5,
    "resnet18": [1728]
    + [36864] * 4
    + [73728]
    + [147456] * 3
    + [294912]
    + [589824] * 3
    + [1179648]
    + [2359296] * 3,
    "wrn56_2": [864] + [9216] * 18 + [18432] + [36864] * 17 + [73728] + [147456] * 17,
    "densenet121": [1728]
    + [36864] * 58
    + [
        128 * (start + 32 * layer)
        for start, layers in ((64, 6), (128, 12), (256, 24), (512, 16))
        for layer in range(layers)
    ],
    "vit": [24576],
}
"""Lengths of the layers that are filtered by default, for each model."""
METHODS = ("fft", "lap", "gaussian", "centralize")
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in FLOAT_DTYPES}


def architectures_here() -> list[str]:
    """Architectures of the GPUs of this machine."""
    from specgrad_kernels.backends.triton import targets

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.device("cuda", index) for index in range(count)]
    return list(dict.fromkeys(targets.architecture_of(device) for device in devices))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specgrad_kernels compile",
        description="Compile the GPU kernels of a model's layers ahead of the first call.",
    )
    parser.add_argument(
        "--target", action="append", help="sm_80, sm_90, gfx942, ...; default: the GPUs here"
    )
    parser.add_argument("--model", action="append", choices=LAYERS, help="default: all of them")
    parser.add_argument("--dtype", action="append", choices=_DTYPES, help="default: float32")
    parser.add_argument("--method", action="append", choices=METHODS, help="default: fft")
    parser.add_argument("--ratio", type=float, default=0.05, help="default: 0.05")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Compile what was asked for and say how far it is."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        from specgrad_kernels.backends.triton import binding, compiling
    except ImportError:
        parser.error("Triton is not installed; pip install triton")
    if binding.INTERPRETING:
        parser.error("TRITON_INTERPRET=1 is set, and interpreted kernels are not compiled")
    targets = options.target or architectures_here()
    if not targets:
        parser.error("PyTorch sees no GPU here; name one, such as --target sm_90")
    compiling.hash_triton()
    wanted: dict[compiling.Variant, None] = {}
    for method in options.method or ["fft"]:
        spec = FilterSpec(method, ratio=options.ratio)
        for dtype in options.dtype or ["float32"]:
            for model in options.model or LAYERS:
                wanted |= dict.fromkeys(compiling.variants(LAYERS[model], spec, _DTYPES[dtype]))
    began = time.monotonic()
    for target in targets:
        try:
            compiling.gpu_target(target)
        except ValueError as error:
            parser.error(str(error))
        print(f"{target}: {len(wanted)} kernels", file=sys.stderr, flush=True)
        compile_one = partial(compiling.compile_offline, architecture=target)
        compiling.side_by_side(list(wanted), compile_one, quiet=0)
        sizes = sorted(
            {
                n
                for model in options.model or LAYERS
                for n in binding.addresses_per_launch(len(LAYERS[model]))
            }
        )
        for size in sizes:
            compiling.compile_address_writer(size, target)
    seconds = time.monotonic() - began
    print(f"{len(wanted) * len(targets)} kernels are in the cache, after {seconds:.0f} s")
    return 0
