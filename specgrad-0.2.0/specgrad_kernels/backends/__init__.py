"""The backends, in order of preference, and the choice between them.

A backend is one module of this package with five names. ``NAME``; ``why_not()``: ``None`` when it
can run here, else the reason with its remedy; ``unsupported_reason(spec, device)``: ``None`` when
it computes this spec there, else the reason; ``run(grads, spec)``: filters in place or raises with
nothing changed; ``explain(spec, d, index, dtype)``: strategy, error bound and workspace bytes of
one layer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from specgrad_kernels.backends import cpp, torch_ref, triton
from specgrad_kernels.spec import FilterSpec


class Backend(Protocol):
    """The five names of a backend module."""

    NAME: str

    def why_not(self) -> str | None: ...

    def unsupported_reason(self, spec: FilterSpec, device: torch.device) -> str | None: ...

    def run(self, grads: Sequence[Tensor], spec: FilterSpec) -> None: ...

    def explain(
        self, spec: FilterSpec, d: int, index: int, dtype: torch.dtype
    ) -> tuple[str, float, int]: ...


BACKENDS: tuple[Backend, ...] = (triton, cpp, torch_ref)
# Read once: on every call it would cost more than everything else this module does.
_FROM_ENVIRONMENT = os.environ.get("SPECGRAD_BACKEND") or "auto"
_NAMES = ("auto", *(backend.NAME for backend in BACKENDS))
if _FROM_ENVIRONMENT not in _NAMES:
    raise ValueError(
        f"SPECGRAD_BACKEND must be one of {', '.join(_NAMES)}, or unset; got {_FROM_ENVIRONMENT!r}"
    )


def report() -> dict[str, str | None]:
    """Every backend, with ``None`` where it can run and the reason where it cannot."""
    return {backend.NAME: backend.why_not() for backend in BACKENDS}


def available_backends() -> list[str]:
    """Names of the backends that can run here, the preferred one first.

    >>> "torch" in available_backends()
    True
    """
    return [name for name, reason in report().items() if reason is None]


@lru_cache(maxsize=256)
def choose(name: str, spec: FilterSpec, device: torch.device) -> Backend:
    """Return the backend for a spec and a device; one that is named must be able to."""
    name = _FROM_ENVIRONMENT if name == "auto" else name
    # A backend for other devices is not asked whether it could run: asking may start a GPU.
    if name == "auto":
        usable = (b for b in BACKENDS if not (b.unsupported_reason(spec, device) or b.why_not()))
        chosen = next(usable)
        return getattr(chosen, "UNDER_AUTO", chosen)
    for backend in BACKENDS:
        if name == backend.NAME:
            reason = backend.unsupported_reason(spec, device) or backend.why_not()
            if reason:
                raise RuntimeError(f"backend {name!r} was asked for but cannot serve: {reason}")
            return backend
    raise ValueError(f"backend must be one of {', '.join(_NAMES)}; got {name!r}")
