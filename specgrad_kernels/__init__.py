"""Spectral gradient filtering: one in-place op for all selected layers of a model."""

from specgrad_kernels.backends import available_backends
from specgrad_kernels.layers import select_layers
from specgrad_kernels.ops import filter_grads_
from specgrad_kernels.plan import FilterPlan
from specgrad_kernels.spec import FilterSpec

__all__ = [
    "FilterPlan",
    "FilterSpec",
    "available_backends",
    "filter_grads_",
    "select_layers",
]
__version__ = "0.1.0"
