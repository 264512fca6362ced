"""Hand a call to its backend, and the operator ``specgrad::filter_grads_`` that graphs hold.

The operator takes gradients, the spec as text and the name of a backend, so a graph that was
saved in one process runs in another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from specgrad_kernels import checks
from specgrad_kernels.backends import Backend, choose
from specgrad_kernels.layout import permute_axes, split_mapped, with_permuted_samples
from specgrad_kernels.spec import FilterSpec, is_sample_order


def run(grads: list[Tensor], spec: FilterSpec, backend: str) -> None:
    """Filter gradients, none of them missing, in place, or raise with nothing changed."""
    if is_compiling() and any(grad.requires_grad for grad in grads):
        # after a break in a graph the kernel is given values that no longer say so
        checks.check_grads(grads, spec)
    if peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        checks.check_derivatives(grads)
    if peek_interpreter_stack() is not None:  # inside vmap: the operator has a rule for it
        torch.ops.specgrad.filter_grads_.default(grads, spec.text, backend)
        return
    chosen = choose(backend, spec, grads[0].device)
    if spec.order is None:
        chosen.run(grads, spec)
    elif is_sample_order(spec.order):
        _run_on_samples(grads, spec, chosen)
    else:
        chosen.run(permute_axes(grads, spec), spec)


def _run_on_samples(grads: list[Tensor], spec: FilterSpec, backend: Backend) -> None:
    """Filter copies whose samples are permuted."""

    def filtered(permuted: list[Tensor], inner: FilterSpec) -> list[Tensor]:
        backend.run(permuted, inner)
        return permuted

    checks.check_grads(grads, spec)
    for grad, result in zip(grads, with_permuted_samples(grads, spec, filtered), strict=True):
        grad.copy_(result)


def _filter_grads(grads: Sequence[Tensor], spec: str, backend: str) -> None:
    run(list(grads), FilterSpec.from_text(spec), backend)


def _filter_grads_fake(grads: Sequence[Tensor], spec: str, backend: str) -> None:
    FilterSpec.from_text(spec).check_count(len(grads))
    for index, grad in enumerate(grads):
        checks.check_tensor(grad, index)


def _filter_grads_in_vmap(
    info: object,
    in_dims: tuple[Sequence[int | None], None, None],
    grads: Sequence[Tensor],
    spec: str,
    backend: str,
) -> tuple[None, None]:
    dims = in_dims[0] or [None] * len(grads)
    for _, views, part in split_mapped(grads, dims, FilterSpec.from_text(spec)):
        run(views, part, backend)
    return None, None


_LIBRARY = torch.library.Library("specgrad", "DEF")
# The first call compiles and later ones depend on where gradients are: nothing for the graphs that
# mode="reduce-overhead" records by itself. torch.cuda.graph() can record a call after the first.
_LIBRARY.define(
    "filter_grads_(Tensor(a!)[] grads, str spec, str backend) -> ()",
    tags=(torch.Tag.cudagraph_unsafe,),
)
_LIBRARY.impl("filter_grads_", _filter_grads, "CompositeExplicitAutograd")
torch.library.register_fake("specgrad::filter_grads_", _filter_grads_fake, lib=_LIBRARY)
torch.library.register_vmap("specgrad::filter_grads_", _filter_grads_in_vmap, lib=_LIBRARY)
