"""Spectral gradient filtering: one in-place op for all selected layers of a model."""

import sys

try:
    from specgrad_kernels.backends import available_backends
    from specgrad_kernels.backends.cpp import release_memory, set_cache_limits
    from specgrad_kernels.functional import filter_grads
    from specgrad_kernels.layers import select_layers
    from specgrad_kernels.ops import filter_grads_
    from specgrad_kernels.plan import FilterPlan
    from specgrad_kernels.spec import FilterSpec
except ValueError as error:
    # SPECGRAD_ISA or SPECGRAD_BACKEND is nonsense; while `python -m` looks for its program, no
    # code of that program could say so
    if sys.argv[:1] == ["-m"]:
        sys.exit(f"error: {error}")
    raise

__all__ = [
    "FilterPlan",
    "FilterSpec",
    "available_backends",
    "filter_grads",
    "filter_grads_",
    "release_memory",
    "select_layers",
    "set_cache_limits",
]
__version__ = "0.2.0"
