"""What the filter holds in memory beside the gradients."""

from __future__ import annotations

import ctypes
import itertools
import math

import torch

from benchmarks.workloads import Workload
from specgrad_kernels import FilterSpec, filter_grads_
from specgrad_kernels.backends import choose

_unused_seeds = itertools.count(1_000_000)


class _MallInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def allocated_bytes() -> int | None:
    """Bytes that the process got from malloc and did not return; ``None`` without glibc 2.33."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None
    mallinfo2.restype = _MallInfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def workspace_share(workload: Workload, spec: FilterSpec, threads: int) -> float:
    """Working memory over the gradients' bytes: every thread's, for the layer that needs most."""
    backend = choose("auto", spec, "cpu")
    largest = max(
        backend.explain(spec, math.prod(shape), index, torch.float32)[2]
        for index, shape in enumerate(workload.shapes)
    )
    return threads * largest / (workload.weights * torch.float32.itemsize)


def kept_share(workload: Workload, method: str, ratio: float) -> float | None:
    """All memory kept after a first call, tables included, over the gradients' bytes."""
    grads = workload.gradients()
    before = allocated_bytes()
    # a seed that no earlier call had, so that nothing is reused
    filter_grads_(grads, method=method, ratio=ratio, seed=next(_unused_seeds))
    after = allocated_bytes()
    if before is None or after is None:
        return None
    return (after - before) / (workload.weights * torch.float32.itemsize)
