"""What a call does: one spec on one backend, decided once, and the operator that compiled graphs
hold in its place.

``specgrad::filter_grads_`` takes gradients and the number of a program. The number follows from
what the program does, so it means the same in every process and in graphs that were kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.compiler import is_compiling

from specgrad_kernels import checks
from specgrad_kernels.backends import Backend, choose
from specgrad_kernels.layout import flatten, is_sample_order, permute_axes, sample_order
from specgrad_kernels.spec import FilterSpec


class Program:
    """Filters lists of gradients, none of them missing."""

    def __init__(self, spec: FilterSpec, backend: Backend) -> None:
        self.spec = spec
        self.backend = backend
        # the same in every process
        self.handle = spec.handle ^ int.from_bytes(backend.NAME.encode()[:7], "little")
        self._run = backend.run
        self._plain = spec.order is None

    def run(self, grads: list[Tensor]) -> None:
        """Filter in place, or raise with nothing changed."""
        if is_compiling() and any(grad.requires_grad for grad in grads):
            # after a break in a graph the kernel is given values that no longer say so
            checks.check_grads(grads, self.spec)
        if peek_interpreter_stack() is not None:  # inside vmap: the operator has a rule for it
            torch.ops.specgrad.filter_grads_.default(grads, self.number_for_graphs())
        elif self._plain:
            self._run(grads, self.spec)
        elif is_sample_order(self.spec.order):
            self._run_on_samples(grads)
        else:
            self._run(permute_axes(grads, self.spec), self.spec)

    def number_for_graphs(self) -> int:
        """The operator's argument, known as long as the process lives."""
        _IN_GRAPHS[self.handle] = self
        return self.handle

    def _run_on_samples(self, grads: list[Tensor]) -> None:
        spec = self.spec
        checks.check_grads(grads, spec)
        filled = [index for index, grad in enumerate(grads) if grad.numel()]
        if not filled:
            return
        grads, spec = [grads[index] for index in filled], spec.select(filled)
        flat = [flatten(grad, spec) for grad in grads]
        orders = [sample_order(signal.shape[-1], spec).to(signal.device) for signal in flat]
        permuted = [signal[:, order] for signal, order in zip(flat, orders, strict=True)]
        self._run(permuted, replace(spec, batch_dims=1, order=None))
        for grad, order, signal in zip(grads, orders, permuted, strict=True):
            restored = torch.empty_like(signal)
            restored[:, order] = signal
            grad.copy_(restored.reshape(grad.shape))


_PROGRAMS: WeakValueDictionary[int, Program] = WeakValueDictionary()
_IN_GRAPHS: dict[int, Program] = {}
"""Programs that a graph may call as long as the process lives."""


@lru_cache(maxsize=256)
def find(spec: FilterSpec, backend: str, device: torch.device) -> Program:
    """The program for a job; a backend asked for by name must serve it."""
    program = Program(spec, choose(backend, spec, device))
    return _PROGRAMS.setdefault(program.handle, program)


def _of_handle(handle: int) -> Program:
    program = _PROGRAMS.get(handle)
    if program is None:
        raise RuntimeError(
            f"program {handle} is not known in this process; make the FilterPlan, or call "
            "filter_grads_ with the same arguments, before the graph that holds it is run"
        )
    return program


def _filter_grads(grads: Sequence[Tensor], program: int) -> None:
    _of_handle(program).run(list(grads))


def _filter_grads_fake(grads: Sequence[Tensor], program: int) -> None:
    _of_handle(program).spec.check_count(len(grads))
    for index, grad in enumerate(grads):
        checks.check_kind(grad, index)


def _filter_grads_in_vmap(
    info: object, in_dims: tuple[Sequence[int | None], None], grads: Sequence[Tensor], program: int
) -> tuple[None, None]:
    """The mapped dimension is one more dimension of a stack."""
    plain = _of_handle(program)
    spec, backend = plain.spec, plain.backend.NAME
    dims = in_dims[0] or [None] * len(grads)
    for added in (1, 0):
        group = [index for index, dim in enumerate(dims) if (dim is not None) == added]
        views = [grads[i] if (dim := dims[i]) is None else grads[i].movedim(dim, 0) for i in group]
        if views:
            part = replace(spec.select(group), batch_dims=spec.batch_dims + added)
            find(part, backend, views[0].device).run(views)
    return None, None


_LIBRARY = torch.library.Library("specgrad", "DEF")
# The first call compiles and later ones depend on where gradients are: nothing for the graphs that
# mode="reduce-overhead" records by itself. torch.cuda.graph() can record a call after the first.
_LIBRARY.define(
    "filter_grads_(Tensor(a!)[] grads, int program) -> ()", tags=(torch.Tag.cudagraph_unsafe,)
)
_LIBRARY.impl("filter_grads_", _filter_grads, "CompositeExplicitAutograd")
torch.library.register_fake("specgrad::filter_grads_", _filter_grads_fake, lib=_LIBRARY)
torch.library.register_vmap("specgrad::filter_grads_", _filter_grads_in_vmap, lib=_LIBRARY)
