"""The native CPU backend: ``csrc/`` behind the operator's CPU key."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from specgrad_kernels import checks
from specgrad_kernels.spec import FUSED_METHODS, FilterSpec

NAME = "cpp"

_REMEDY = (
    "install a C++17 compiler and run "
    "'pip install --no-build-isolation --force-reinstall --no-deps .' in the source tree"
)


def _load() -> tuple[ModuleType | None, str | None]:
    """The plan-design module with the operator's library loaded, or why there is none."""
    libraries = sorted(Path(__file__).parent.parent.glob("_kernels*.so"))
    if not libraries:
        return None, f"the native library was not built ({_REMEDY})"
    try:
        torch.ops.load_library(libraries[0])
        module = importlib.import_module("specgrad_kernels._design")
    except (OSError, ImportError, RuntimeError) as error:
        return None, f"the native library does not load: {error} ({_REMEDY})"
    return module, None


design, _WHY_NOT = _load()


def why_not() -> str | None:
    """``None`` when the native library is loaded."""
    return _WHY_NOT


def serves(spec: FilterSpec, device: torch.device) -> str | None:
    """Fused methods on CPU tensors."""
    if device.type != "cpu":
        return f"it filters CPU tensors; these are on {device}"
    if spec.method not in FUSED_METHODS:
        return f"method {spec.method!r} is a control that only the torch backend computes"
    return None


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Filter in place. The kernel only recognises bad input; the checks explain it."""
    for grad in grads:
        if type(grad) is not Tensor or grad.requires_grad or not grad.is_cpu:
            checks.check_grads(grads, spec)
            break
    try:
        torch.ops.specgrad.filter_grads_.default(grads, spec.text)
    except (RuntimeError, ValueError):
        checks.check_grads(grads, spec)
        if spec.nonfinite == "raise":
            checks.check_finite(grads)
        raise
    torch.autograd.graph.increment_version(grads)


def release_memory() -> tuple[int, int]:
    """Forget what is kept from call to call: the bytes of tables and those of workspaces.

    Tables of the last 256 lists of layers and specs are kept, up to 64 MiB.
    """
    return (0, 0) if design is None else torch.ops.specgrad.release_memory()


def explain(spec: FilterSpec, d: int, index: int, dtype: torch.dtype) -> tuple[str, float, int]:
    """Strategy, error bound and workspace in bytes of one contiguous layer."""
    assert design is not None
    precision = "double" if dtype == torch.float64 else "single"
    layer = design.explain(spec.text, index, d, precision, dtype.itemsize >= 4)
    strategy, error_bound = layer["strategy"], layer["error_bound"]
    if strategy != "identity" and dtype.itemsize < 4:
        error_bound += torch.finfo(dtype).eps / 2  # computed in float32, rounded once at the end
    if strategy == "band":
        strategy = f"band /{layer['hop']}, window {layer['width']}"
    return strategy, error_bound, layer["workspace_bytes"]
