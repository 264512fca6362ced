"""The native CPU backend: ``csrc/`` fed with the numbers of a design."""

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
from specgrad_kernels.kinds import BOUNDARIES, Bins
from specgrad_kernels.layout import collapse, signal_shape
from specgrad_kernels.overlap import extent
from specgrad_kernels.spec import FilterSpec

NAME = "cpp"

_STRATEGIES = ("dense", "band", "full", "box", "weights")
_UNKNOWN_LAYOUT, _INTERLEAVED, _NEGATED = 1, 2, 3
"""Why the kernel wrote nothing; 0 is done."""


def _load() -> ModuleType | str:
    """The library, or why there is none."""
    try:
        loader = ExtensionFileLoader("specgrad_kernels._kernels", str(built.library()))
        found = importlib.util.spec_from_loader(loader.name, loader)
        assert found is not None
        return importlib.util.module_from_spec(found)
    except built.NotBuilt as error:
        return str(error)
    except (ImportError, AttributeError, RuntimeError) as error:
        return f"the native library does not load: {error} ({built.REMEDY})"


_LOADED = _load()
_WHY_NOT = _LOADED if isinstance(_LOADED, str) else None
_NATIVE = torch.ops.specgrad_native
if not isinstance(_LOADED, str):
    try:
        INSTRUCTION_SET: str | None = _NATIVE.instruction_set()
    except RuntimeError as error:  # torch 2.15's word for a SPECGRAD_ISA that names none
        raise ValueError(str(error)) from None
    _BYTES_A_VECTOR: int = _NATIVE.bytes_a_vector()
    _run = _LOADED.run
else:
    INSTRUCTION_SET = None


# torch.autograd.graph.increment_version without its look at the argument
_increment_version = torch._C._increment_version


def why_not() -> str | None:
    """``None`` when the native library is loaded."""
    return _WHY_NOT


def serves(spec: FilterSpec, device: torch.device) -> str | None:
    """Every kind that has numbers, on CPU tensors."""
    if device.type != "cpu":
        return f"it filters CPU tensors; these are on {device}"
    if not spec.kind.has_numbers:
        return f"method {spec.method!r} is a control that only the torch backend computes"
    return None


# one call for the whole list, where this torch has it
_any_requires_grad: Callable[..., bool] = getattr(
    torch._C, "_any_requires_grad", lambda *grads: any(grad.requires_grad for grad in grads)
)


def _surely_finite(grads: Sequence[Tensor]) -> bool:
    """Whether their sums are, which is the quickest to ask; a sum can overflow by itself."""
    return all(math.isfinite(grad.sum(dtype=checks.COMPUTED_IN.get(grad.dtype))) for grad in grads)


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Filter in place. The kernel only recognises bad input; the checks explain it."""
    try:
        refused = _any_requires_grad(*grads)
        refused = refused or (spec.nonfinite == "raise" and not _surely_finite(grads))
        refused = refused or _run(grads, spec.handle)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        checks.check_grads(grads, spec)
        raise
    if refused:
        _run_after_checks(grads, spec)
    _increment_version(grads)


def _run_after_checks(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """What is new, such as layouts or slices of one tensor, is looked at once and remembered."""
    checks.check_grads(grads, spec)
    if spec.nonfinite == "raise":
        checks.check_finite(grads)
    outcome = _run(grads, spec.handle, True)
    if outcome == _NEGATED:
        plain = [grad.resolve_neg() for grad in grads]
        run(plain, spec)
        for grad, filtered in zip(grads, plain, strict=True):
            grad.copy_(filtered)
        return
    if outcome == _UNKNOWN_LAYOUT:
        _compile(grads, spec)
        _run(grads, spec.handle, True)


class _Design(NamedTuple):
    """One filter as the kernel reads it, and what a plan tells of it."""

    numbers: np.ndarray
    name: str
    error_bound: float
    norm: float


def _flat(head: list[float], *lists: Sequence[float] | np.ndarray) -> np.ndarray:
    """Numbers in the order in which the kernel reads them, each list after its length."""
    return np.concatenate([head, *(np.append(len(each), each) for each in lists)])


def _design(spec: FilterSpec, parameters: Any, d: int, double: bool) -> _Design:
    numbers = spec.kind.numbers(parameters, d, spec)
    assert numbers is not None
    if not isinstance(numbers, Bins):
        strategy = _STRATEGIES.index("box" if numbers.box else "weights")
        boundary = BOUNDARIES.index(numbers.boundary)
        bound = numbers.norm * design.average_rounding(double, numbers.radius, numbers.box)
        flat = _flat([strategy, double, d, 0, 0, boundary, 0, 0], [], [], [], numbers.weights)
        return _Design(flat, spec.method, bound, numbers.norm)
    lanes = _BYTES_A_VECTOR // (8 if double else 4)
    try:
        chosen = design.remove_low_band(d, numbers.removed, double, lanes, spec.strategy)
        gains = chosen.gains
    except MemoryError:
        raise MemoryError(
            f"the tables for a layer of {d} samples do not fit the memory, since its "
            "length has a large prime factor; leave the layer out, or filter it in pieces"
        ) from None
    strategy = _STRATEGIES.index(chosen.strategy.replace("padded", "full"))
    passes = [design.transform_passes(n) for n in (chosen.grid.rows, chosen.grid.columns)]
    removes_mean = chosen.cutoff > 1 and chosen.removed[0] == 1
    head = [strategy, double, d, chosen.hop, chosen.width, 0, removes_mean, chosen.cost]
    is_band = chosen.strategy == "band"
    name = f"band /{chosen.hop}, window {chosen.width}" if is_band else chosen.strategy
    flat = _flat(head, chosen.taps, *passes, gains)
    return _Design(flat, name, chosen.error_bound, numbers.norm)


def _compile(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Hand the program for gradients of these layouts to the library."""
    known: dict[tuple, int] = {}
    designs = [np.empty(0)]
    tensors: list[int] = []
    for index, grad in enumerate(grads):
        shape = signal_shape(grad.shape, spec)
        stack = grad.dim() - len(shape)
        start, end = extent(grad) if grad.numel() else (0, 0)
        parameters = spec.kind.parameters(spec, shape, index) if grad.numel() else None
        key = (parameters, math.prod(shape), grad.dtype == torch.float64)
        if parameters is not None and key not in known:
            known[key] = len(known)
            designs.append(_design(spec, *key).numbers)
        dtype = checks.FLOAT_DTYPES.index(grad.dtype)
        tensors += [dtype, grad.dim(), *grad.shape, *grad.stride()]
        offsets = np.zeros(1, np.int64)
        for size, step in zip(grad.shape[:stack], grad.stride()[:stack], strict=True):
            offsets = np.add.outer(offsets, step * grad.element_size() * np.arange(size)).ravel()
        tensors += [known.get(key, -1), end - start, len(offsets), *offsets.tolist()]
        sizes, strides = collapse(grad.shape[stack:], grad.stride()[stack:])
        tensors += [len(sizes), *sizes, *strides]
    _NATIVE.load(spec.handle, torch.from_numpy(np.concatenate(designs)), tensors)


def release_memory() -> tuple[int, int]:
    """Forget what is kept from call to call: the bytes of tables and those of workspaces.

    Tables of the last 256 lists of layers and specs are kept, up to 64 MiB.
    """
    return (0, 0) if _WHY_NOT else _NATIVE.release_memory()


def explain(spec: FilterSpec, d: int, index: int, dtype: torch.dtype) -> tuple[str, float, int]:
    """Strategy, error bound and workspace in bytes of one contiguous layer."""
    parameters = spec.kind.parameters(spec, (d,), index)
    if parameters is None:
        return "identity", 0.0, 0
    told = _design(spec, parameters, d, dtype == torch.float64)
    workspace = _NATIVE.workspace_bytes(torch.from_numpy(told.numbers), dtype.itemsize >= 4)
    return told.name, told.error_bound + design.stored_rounding(dtype, told.norm), workspace
