"""The native CPU backend: ``csrc/`` fed with the numbers of a design."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Hashable, Sequence
from importlib.machinery import ExtensionFileLoader
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from specgrad_kernels import checks, design
from specgrad_kernels.backends import built
from specgrad_kernels.kinds import BOUNDARIES, Bins, Numbers
from specgrad_kernels.layout import collapse, signal_shape
from specgrad_kernels.overlap import extent
from specgrad_kernels.spec import FilterSpec

NAME = "cpp"

_STRATEGIES = ("dense", "band", "full", "padded", "box", "weights")
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_UNKNOWN_LAYOUT, _INTERLEAVED, _NONFINITE, _NEGATED = 1, 2, 3, 4
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


def _load_cpu() -> ModuleType | None:
    """The module that tells what this CPU runs. Nothing depends on it but the report."""
    try:
        return importlib.import_module("specgrad_kernels._cpu")
    except ImportError:
        return None


_LOADED = _load()
_WHY_NOT = _LOADED if isinstance(_LOADED, str) else None
_NATIVE = torch.ops.specgrad_native
cpu = _load_cpu()
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


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Filter in place. The kernel only recognises bad input; the checks explain it."""
    try:
        refused = _any_requires_grad(*grads) or _run(grads, spec.handle)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        checks.check_grads(grads, spec)
        raise
    if refused:
        _run_after_checks(grads, spec)
    _increment_version(grads)


def _run_after_checks(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """What is new, such as layouts or slices of one tensor, is looked at once and remembered."""
    checks.check_grads(grads, spec)
    outcome = _run(grads, spec.handle, True)
    if outcome == _NEGATED:
        plain = [grad.resolve_neg() for grad in grads]
        run(plain, spec)
        for grad, filtered in zip(grads, plain, strict=True):
            grad.copy_(filtered)
        return
    if outcome == _UNKNOWN_LAYOUT:
        _compile(grads, spec)
        outcome = _run(grads, spec.handle, True)
    if outcome == _NONFINITE:
        checks.check_finite(grads)


class _Designs:
    """Designs laid end to end, each kept once, as the kernel reads them."""

    def __init__(self, spec: FilterSpec) -> None:
        self._spec = spec
        self._known: dict[Hashable, int] = {}
        self.integers: list[int] = []
        self.values: list[np.ndarray] = [np.empty(0)]

    def add(self, shape: Sequence[int], index: int, dtype: torch.dtype) -> int:
        """Number of the design for a signal, -1 for the identity."""
        parameters = self._spec.kind.parameters(self._spec, shape, index)
        if parameters is None:
            return -1
        key = (parameters, math.prod(shape), dtype == torch.float64)
        if key not in self._known:
            numbers = self._spec.kind.numbers(parameters, key[1], self._spec)
            assert numbers is not None
            self._known[key] = len(self._known)
            try:
                self._append(numbers, *key[1:])
            except MemoryError:
                raise MemoryError(
                    f"the tables for a layer of {key[1]} samples do not fit the memory, since its "
                    "length has a large prime factor; leave the layer out, or filter it in pieces"
                ) from None
        return self._known[key]

    def _append(self, numbers: Numbers, d: int, double: bool) -> None:
        if isinstance(numbers, Bins):
            chosen = _low_band(numbers, d, double, self._spec.strategy)
            grid, gains = chosen.grid, chosen.gains
            form = [_STRATEGIES.index(chosen.strategy), double, d, chosen.hop, chosen.width]
            self.integers += [*form, grid.rows, grid.columns, len(gains), 0]
            self.values += [np.array([chosen.cost]), chosen.taps, gains]
            return
        weights, boundary = numbers.weights, BOUNDARIES.index(numbers.boundary)
        form = [_STRATEGIES.index("box" if numbers.box else "weights"), double, d, 0, 0]
        self.integers += [*form, 0, 0, len(weights), boundary]
        self.values += [np.zeros(1), weights]

    @property
    def as_arguments(self) -> tuple[list[int], Tensor]:
        """The integers of all designs, and their values."""
        return self.integers, torch.from_numpy(np.concatenate(self.values))


def _lanes(double: bool) -> int:
    return _BYTES_A_VECTOR // (8 if double else 4)


def _low_band(numbers: Bins, d: int, double: bool, strategy: str) -> design.LowBand:
    return design.remove_low_band(d, numbers.removed, double, _lanes(double), strategy)


def _compile(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Hand the program for gradients of these layouts to the library."""
    designs = _Designs(spec)
    tensors: list[int] = []
    for index, grad in enumerate(grads):
        empty = grad.numel() == 0
        shape = signal_shape(grad.shape, spec)
        stack = grad.dim() - len(shape)
        start, end = (0, 0) if empty else extent(grad)
        number = -1 if empty else designs.add(shape, index, grad.dtype)
        tensors += [_DTYPES.index(grad.dtype), grad.dim(), *grad.shape, *grad.stride()]
        tensors += [number, end - start, stack, *grad.shape[:stack], *grad.stride()[:stack]]
        for first in (0, stack):
            sizes, strides = collapse(grad.shape[first:], grad.stride()[first:])
            tensors += [len(sizes), *sizes, *strides]
    _NATIVE.load(spec.handle, *designs.as_arguments, tensors, spec.nonfinite == "raise")


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
    double = dtype == torch.float64
    numbers = spec.kind.numbers(parameters, d, spec)
    assert numbers is not None
    if isinstance(numbers, Bins):
        chosen = _low_band(numbers, d, double, spec.strategy)
        name = chosen.strategy
        if name == "band":
            name = f"band /{chosen.hop}, window {chosen.width}"
        bound = chosen.error_bound
    else:
        name = spec.method
        bound = numbers.norm * design.average_rounding(double, numbers.radius, numbers.box)
    designs = _Designs(spec)
    designs.add((d,), index, dtype)
    workspace = _NATIVE.workspace_bytes(*designs.as_arguments, dtype.itemsize >= 4)
    return name, bound + design.stored_rounding(dtype, numbers.norm), workspace
