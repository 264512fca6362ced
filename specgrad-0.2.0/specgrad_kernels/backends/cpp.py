"""The native CPU backend: designs filters and layouts for the library built from ``csrc/``."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specgrad_kernels import checks, design
from specgrad_kernels.backends import built
from specgrad_kernels.kinds import Bins
from specgrad_kernels.layout import collapse, signal_shape
from specgrad_kernels.overlap import extent
from specgrad_kernels.spec import FilterSpec

NAME = "cpp"


def _load() -> ModuleType | str:
    """Return the library, or the reason why there is none."""
    try:
        loader = ExtensionFileLoader("specgrad_kernels._kernels", str(built.library()))
        found = importlib.util.spec_from_loader(loader.name, loader)
        assert found is not None
        module = importlib.util.module_from_spec(found)
        module.compile  # noqa: B018 -- a library built from older sources has none
        return module
    except built.NotBuilt as error:
        return str(error)
    except (ImportError, AttributeError, RuntimeError) as error:
        return f"the native library does not load: {error} ({built.REMEDY})"


_LOADED = _load()
_WHY_NOT = _LOADED if isinstance(_LOADED, str) else None
INSTRUCTION_SET: str | None = None
RUNNABLE = ""  # all instruction sets with kernels that this CPU runs
if not isinstance(_LOADED, str):
    INSTRUCTION_SET, _BYTES_A_VECTOR, RUNNABLE = _LOADED.instruction_set()
    _run = _LOADED.run


# torch.autograd.graph.increment_version without its look at the argument
_increment_version = torch._C._increment_version


def why_not() -> str | None:
    """Return ``None`` when the native library is loaded, else the reason."""
    return _WHY_NOT


def unsupported_reason(spec: FilterSpec, device: torch.device) -> str | None:
    """Return ``None`` for CPU tensors and kinds with a kernel, else the reason."""
    if device.type != "cpu":
        return f"it filters CPU tensors; these are on {device}"
    if not spec.kind.has_kernel:
        return f"method {spec.method!r} is a control that only the torch backend computes"
    return None


# one call for the whole list, where this torch has it
_any_requires_grad: Callable[..., bool] = getattr(
    torch._C, "_any_requires_grad", lambda *grads: any(grad.requires_grad for grad in grads)
)


def _surely_finite(grads: Sequence[Tensor]) -> bool:
    """Return True if all sums are finite, the quickest test; a sum can overflow by itself."""
    return all(math.isfinite(grad.sum(dtype=checks.COMPUTED_IN.get(grad.dtype))) for grad in grads)


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Filter in place. The kernel only recognises bad input; the checks explain it."""
    try:
        refused = _any_requires_grad(*grads)
        refused = refused or (spec.nonfinite == "raise" and not _surely_finite(grads))
        refused = refused or _run(grads, spec.text) is not None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        checks.check_grads(grads, spec)
        raise
    if refused:
        _run_after_checks(grads, spec)
    _increment_version(grads)


def _run_after_checks(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Check what is new, such as layouts or slices of one tensor; later calls recognise it."""
    checks.check_grads(grads, spec)
    if spec.nonfinite == "raise":
        checks.check_finite(grads)
    problem = _run(grads, spec.text, True)
    if problem == "negated":
        plain = [grad.resolve_neg() for grad in grads]
        run(plain, spec)
        for grad, filtered in zip(grads, plain, strict=True):
            grad.copy_(filtered)
        return
    if problem == "unknown_layout":
        # the program itself is run: other threads may have evicted it from the cache already
        problem = _run(grads, _compile(grads, spec), True)
    if problem:
        raise RuntimeError(
            "a gradient was replaced or reshaped by another thread while it was filtered, and "
            f"nothing was filtered ({problem}); filter it from one thread"
        )


class _FilterDesign(NamedTuple):
    """Filter of one signal length; fields as in csrc/interface.h, lists as bytes."""

    strategy: str
    double_precision: bool
    d: int
    cost: float
    gains: bytes
    boundary: str = "count"
    hop: int = 0
    width: int = 0
    removes_mean: bool = False
    row_columns: int = 0
    row_inner: int = 1
    taps: bytes = b""
    column_radices: bytes = b""
    row_radices: bytes = b""


class _TensorLayout(NamedTuple):
    """Memory layout of one gradient; fields as in csrc/interface.h, lists as bytes."""

    dtype: str
    shape: bytes
    strides: bytes
    design: int
    extent: int
    stack_sizes: bytes
    stack_strides: bytes
    signal_sizes: bytes
    signal_strides: bytes


class _Explained(NamedTuple):
    """A design, and what ``FilterPlan.describe`` says of it."""

    design: _FilterDesign
    name: str
    error_bound: float
    norm: float


def _integers(numbers: Sequence[int]) -> bytes:
    return np.array(numbers, np.int64).tobytes()


def _passes(grid: design.TransformGrid) -> dict[str, Any]:
    return {
        "column_radices": _integers(design.transform_passes(grid.rows)),
        "row_radices": _integers(design.transform_passes(grid.columns)),
    }


def _design(spec: FilterSpec, parameters: Any, d: int, double: bool) -> _Explained:
    numbers = spec.kind.numbers(parameters, d, spec)
    assert numbers is not None
    lanes = _BYTES_A_VECTOR // (8 if double else 4)
    if not isinstance(numbers, Bins):
        strategy = "box" if numbers.box else "weights"
        cost = design.average_cost(d, numbers.radius, numbers.box, lanes)
        bound = numbers.norm * design.average_rounding(double, numbers.radius, numbers.box)
        weights = numbers.weights.tobytes()
        made = _FilterDesign(strategy, double, d, cost, weights, numbers.boundary)
        grid = design.wide_grid(d, numbers.radius, lanes)
        if not numbers.box and grid.cost < cost:
            bound = numbers.norm * design.rounding(double, design.transform_units(grid.size))
            made = made._replace(
                strategy="wide",
                cost=grid.cost,
                gains=design.wide_gains(numbers.weights, grid.size).tobytes(),
                taps=weights,
                **_passes(grid),
            )
        return _Explained(made, spec.method, bound, numbers.norm)
    try:
        chosen = design.remove_low_band(d, numbers.removed, double, lanes, spec.strategy)
        gains = chosen.gains
    except MemoryError:
        raise MemoryError(
            f"the tables for a layer of {d} samples do not fit the memory, since its "
            "length has a large prime factor; leave the layer out, or filter it in pieces"
        ) from None
    is_mean = chosen.strategy == "dense" and chosen.cutoff == 1 and chosen.removed[0] == 1
    columns, inner = numbers.row or (d, 1)
    made = _FilterDesign(
        "mean" if is_mean else chosen.strategy.replace("padded", "full"),
        double,
        d,
        chosen.cost,
        gains.tobytes(),
        hop=chosen.hop,
        width=chosen.width,
        removes_mean=chosen.cutoff > 1 and bool(chosen.removed[0] == 1),
        row_columns=columns,
        row_inner=inner,
        taps=chosen.taps.tobytes(),
        **_passes(chosen.grid),
    )
    is_band = chosen.strategy == "band"
    name = f"band /{chosen.hop}, window {chosen.width}" if is_band else chosen.strategy
    return _Explained(made, name, chosen.error_bound, numbers.norm)


def _compile(grads: Sequence[Tensor], spec: FilterSpec) -> object:
    """Return the library's program for gradients of these layouts."""
    indices: dict[tuple, int] = {}
    designs: list[_FilterDesign] = []
    tensors: list[_TensorLayout] = []
    for index, grad in enumerate(grads):
        shape = signal_shape(grad.shape, spec)
        stack = grad.dim() - len(shape)
        start, end = extent(grad) if grad.numel() else (0, 0)
        parameters = spec.kind.parameters(spec, shape, index) if grad.numel() else None
        key = (parameters, math.prod(shape), grad.dtype == torch.float64)
        if parameters is not None and key not in indices:
            indices[key] = len(designs)
            designs.append(_design(spec, *key).design)
        tensors.append(
            _TensorLayout(
                str(grad.dtype).removeprefix("torch."),
                _integers(grad.shape),
                _integers(grad.stride()),
                indices.get(key, -1),
                end - start,
                *map(_integers, collapse(grad.shape[:stack], grad.stride()[:stack])),
                *map(_integers, collapse(grad.shape[stack:], grad.stride()[stack:])),
            )
        )
    assert not isinstance(_LOADED, str)
    return _LOADED.compile(spec.text, designs, tensors)


def set_cache_limits(programs: int = 4096, megabytes: float = 64) -> None:
    """Limit the compiled programs kept for later calls on the CPU.

    A program belongs to one spec and one list of gradient shapes, dtypes and strides. The least
    recently used are forgotten; a call that needs one again compiles it again.
    """
    for name, value in (("programs", programs), ("megabytes", megabytes)):
        if not value >= 0:
            raise ValueError(f"{name} must be 0 or more; got {value!r}")
    if not isinstance(_LOADED, str):
        _LOADED.set_cache_limits(int(programs), int(megabytes * 2**20))


def release_memory() -> tuple[int, int]:
    """Free the compiled programs and workspaces of the CPU; return the bytes of each.

    Calls that are running keep theirs. The next call of each kind compiles again.
    """
    return (0, 0) if isinstance(_LOADED, str) else _LOADED.release_memory()


def explain(spec: FilterSpec, d: int, index: int, dtype: torch.dtype) -> tuple[str, float, int]:
    """Strategy, error bound and workspace in bytes of one contiguous layer."""
    parameters = spec.kind.parameters(spec, (d,), index)
    if parameters is None:
        return "identity", 0.0, 0
    found = _design(spec, parameters, d, dtype == torch.float64)
    assert not isinstance(_LOADED, str)
    workspace = _LOADED.workspace_bytes(found.design, dtype.itemsize >= 4)
    return found.name, found.error_bound + design.stored_rounding(dtype, found.norm), workspace
