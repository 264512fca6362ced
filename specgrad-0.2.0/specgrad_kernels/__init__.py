"""Spectral gradient filtering: one in-place op for all selected layers of a model."""

import sys
import warnings

try:
    from specgrad_kernels.backends import available_backends, built
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
except ImportError as error:
    if not (error.name or "").startswith(__name__):
        raise
    raise ImportError(
        f"files of specgrad in {__path__[0]} are missing or of two versions ({error}); run "
        "'pip install --force-reinstall --no-deps' with the wheel or the source tree that you "
        "installed from",
        name=__name__,
    ) from None

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

for _sentence in built.other_versions(__version__):
    warnings.warn(_sentence, RuntimeWarning, stacklevel=2)
