"""Memory of the filter beside the gradients."""

from __future__ import annotations

import math

import torch

from benchmarks.workloads import Workload
from specgrad_kernels import FilterSpec, filter_grads_
from specgrad_kernels.backends import choose, cpp

# a thread's memory grows with the first long layer that it happens to take
_CALLS = 10


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


def kept_share(workload: Workload, spec: FilterSpec) -> float:
    """Tables and workspaces kept from call to call, over the gradients' bytes."""
    grads = workload.gradients()
    cpp.release_memory()
    for _ in range(_CALLS):
        filter_grads_(grads, method=spec.method, ratio=spec.ratio)
    return sum(cpp.release_memory()) / _gradient_bytes(workload)
