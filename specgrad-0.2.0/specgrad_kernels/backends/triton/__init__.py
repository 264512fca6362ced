"""The Triton backend: all layers of a call in a constant number of launches.

Nothing of Triton is imported before the first call that needs it. With ``TRITON_INTERPRET=1``
the kernels run on CPU tensors, slowly: a route for tests.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from specgrad_kernels import design
from specgrad_kernels.backends import torch_ref
from specgrad_kernels.backends.triton import failures
from specgrad_kernels.kinds import LocalAverage
from specgrad_kernels.spec import FilterSpec

NAME = "triton"

NEEDED_CAPABILITY = (7, 5)
NEEDED_SHARED_MEMORY = 48 * 1024


def interpreting() -> bool:
    """True where kernels are interpreted on the CPU instead of compiled for a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def device_problem(index: int) -> str | None:
    """Return why the kernels cannot run on one GPU, in a sentence, or ``None``."""
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    if torch.version.hip is None and capability < NEEDED_CAPABILITY:
        return (
            f"{properties.name} has compute capability {capability[0]}.{capability[1]} and the "
            "kernels need 7.5 (Turing) or later; backend='torch' serves it"
        )
    shared = getattr(properties, "shared_memory_per_block_optin", NEEDED_SHARED_MEMORY)
    if shared < NEEDED_SHARED_MEMORY:
        return (
            f"{properties.name} has {shared:,} bytes of shared memory per block and the kernels "
            f"need {NEEDED_SHARED_MEMORY:,}; backend='torch' serves it"
        )
    return failures.reason(torch.device("cuda", index))


def launcher_problem() -> str | None:
    """Return why Triton cannot launch here: it compiles a part of itself at its first use."""
    from triton.runtime import driver

    from specgrad_kernels.backends.triton import compiling

    compiling.hash_triton()  # while the C compiler runs
    try:
        driver.active.get_current_target()
    except Exception as error:  # whatever a compiler, a linker or a driver may say
        reason = " ".join(str(error).split()) or type(error).__name__
        return (
            f"Triton cannot build its launcher: {reason[:300]} (it needs a C compiler and Python's "
            "headers, such as 'apt install gcc python3-dev'; CC names another compiler)"
        )
    return None


@lru_cache(maxsize=1)
def why_not() -> str | None:
    """Return ``None`` where Triton and a GPU it can use are at hand, else the reason."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    if interpreting():
        return None
    if not torch.cuda.is_available():
        return "PyTorch sees no GPU here (it needs one, and a CUDA or ROCm build of PyTorch)"
    problems = [device_problem(index) for index in range(torch.cuda.device_count())]
    return launcher_problem() if None in problems else "; ".join(filter(None, problems))


def unsupported_reason(spec: FilterSpec, device: torch.device) -> str | None:
    """Every kind that has numbers, on GPU tensors; on the CPU where kernels are interpreted."""
    if device.type != ("cpu" if interpreting() else "cuda"):
        return f"it filters GPU tensors; these are on {device}"
    if not spec.kind.has_kernel:
        return f"method {spec.method!r} is a control that only the torch backend computes"
    if device.type == "cuda":
        # of several GPUs one may be too old, which is no fault of the others
        return why_not() or device_problem(
            torch.cuda.current_device() if device.index is None else device.index
        )
    return None


def run(grads: Sequence[Tensor], spec: FilterSpec) -> None:
    """Filter in place, or raise with nothing changed."""
    from specgrad_kernels.backends.triton import launch

    launch.run(grads, spec)


class _OrTorch:
    """This backend where it was not asked for by name: PyTorch takes over where kernels fail."""

    NAME = NAME

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in globals():
            raise AttributeError(name)
        return globals()[name]  # all but ``run`` is the module's

    def run(self, grads: Sequence[Tensor], spec: FilterSpec) -> None:
        """Filter in place by the kernels, or by PyTorch with one warning for each failure."""
        try:
            run(grads, spec)
        except failures.KernelFailure as failure:
            if str(failure) not in self._warned:
                self._warned.add(str(failure))
                warnings.warn(
                    f"{failure}. The torch backend filters on this device from now on; "
                    "backend='triton' raises instead",
                    RuntimeWarning,
                    stacklevel=2,
                )
            torch_ref.run(grads, spec)


UNDER_AUTO = _OrTorch()


def explain(spec: FilterSpec, d: int, index: int, dtype: torch.dtype) -> tuple[str, float, int]:
    """Strategy, error bound and workspace in bytes of one layer.

    >>> explain(FilterSpec(), 36864, 0, torch.float32)[0]
    'band 8 x 9 x 512'
    >>> explain(FilterSpec(), 433, 0, torch.float32)[0]
    'circulant 1 x 433'
    """
    from specgrad_kernels.backends.triton import schedule, signals, targets

    double = dtype is torch.float64
    removal = signals.removal_of(spec, d, index, double)
    wanted = removal.wanted
    if wanted is None or removal.strategy == "stacked":
        return torch_ref.explain(spec, d, index, dtype)
    built = schedule.build([signals.contiguous_signal(d, index)], spec, double)
    workspace = built.workspace * (8 if double else 4) + built.borders * dtype.itemsize
    if isinstance(wanted, LocalAverage):
        name = f"tiles, radius {wanted.radius}"
        bound = wanted.norm * design.average_rounding(double, wanted.radius, wanted.box)
    elif removal.strategy == "means" or removal.grid is None:
        name, bound = "means", design.rounding(double)
    else:
        name = removal.grid.describe()
        bound = removal.grid.error(targets.all_solve_in_float64(dtype))
        assert removal.removed is not None, "a grid is made for bins"
        bound *= design.largest_factor(removal.removed)
    return name, bound + design.stored_rounding(dtype, wanted.norm), workspace


def launches(spec: FilterSpec, layers: Sequence[tuple[int, torch.dtype]]) -> str:
    """Return the kernels that one call launches, and the calls left to PyTorch, as text.

    >>> launches(FilterSpec(), [(36864, torch.float32)] * 5)
    '3 launches'
    >>> launches(FilterSpec(), [(36864, torch.float32), (36871, torch.float32)])
    '3 launches and 1 stacked torch.fft'
    """
    from specgrad_kernels.backends.triton import schedule, signals

    groups: dict[torch.dtype, list[signals.Signal]] = {}
    stacked = set()
    for index, (d, dtype) in enumerate(layers):
        removal = signals.removal_of(spec, d, index, dtype is torch.float64)
        if removal.strategy == "stacked":
            stacked.add((removal, dtype))
        elif removal.strategy != "identity":
            groups.setdefault(dtype, []).append(signals.contiguous_signal(d, index))
    count = sum(
        len(schedule.build(members, spec, dtype is torch.float64).launches)
        for dtype, members in groups.items()
    )
    own = f"{count} launch{'' if count == 1 else 'es'}"
    return f"{own} and {len(stacked)} stacked torch.fft" if stacked else own
