"""What the filter holds in memory beside the gradients."""

from __future__ import annotations

import ctypes
import math

import torch

from benchmarks.workloads import Workload
from specgrad_kernels import FilterSpec, filter_grads_
from specgrad_kernels.backends import choose, cpp

# a thread's memory grows with the first long layer that it happens to take
_CALLS = 10


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


def _gradient_bytes(workload: Workload) -> int:
    return workload.weights * torch.float32.itemsize


def workspace_share(workload: Workload, spec: FilterSpec) -> float:
    """One thread's working memory over the gradients' bytes: that of the layer that needs most."""
    backend = choose("auto", spec, torch.device("cpu"))
    largest = max(
        backend.explain(spec, math.prod(shape), index, torch.float32)[2]
        for index, shape in enumerate(workload.shapes)
    )
    return largest / _gradient_bytes(workload)


def kept_share(workload: Workload, spec: FilterSpec) -> float | None:
    """Memory kept from call to call, tables included, over the gradients' bytes: what malloc gets
    back once the filter forgets it, so that nothing else that a process keeps is counted."""
    grads = workload.gradients()
    cpp.release_memory()
    for _ in range(_CALLS):
        filter_grads_(grads, method=spec.method, ratio=spec.ratio)
    kept = allocated_bytes()
    cpp.release_memory()
    released = allocated_bytes()
    if kept is None or released is None:
        return None
    return (kept - released) / _gradient_bytes(workload)
