"""Filters gradients by executing the compiled PTX of every launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specgrad_kernels.backends.triton import schedule
from specgrad_kernels.backends.triton.compiling import Variant
from specgrad_kernels.backends.triton.signals import signals_of
from specgrad_kernels.backends.triton.targets import KERNELS
from specgrad_kernels.layout import signal_shape
from specgrad_kernels.spec import FilterSpec
from triton_tools.offline import compile_variant
from triton_tools.ptx import PtxKernel
from triton_tools.ptx.machine import Memory, tensor_bytes

Run = Callable[[PtxKernel, int, Sequence[int], Memory], object]

TARGET = "sm_80"


def storage_of(tensor: Tensor) -> Tensor:
    """All memory of a tensor's storage as one contiguous tensor."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((elements,), (1,), 0)


def tensors_of(plan: schedule.Schedule, grads: Sequence[Tensor], fill: float) -> dict[str, Tensor]:
    """All that launches are given but their programs; scratch memory is full of one value.

    Copies are aligned as on a device, NumPy's own arrays are not.
    """
    coefficients = torch.from_numpy(plan.coefficients).clone()
    return {
        "addresses_ptr": torch.tensor([grad.data_ptr() for grad in grads]),
        "layouts_ptr": torch.from_numpy(plan.table).clone(),
        "coefficients_ptr": coefficients,
        "workspace_ptr": coefficients.new_full((plan.workspace,), fill),
        "borders_ptr": torch.full((plan.borders,), fill, dtype=grads[0].dtype),
    }


def compiled_launch(
    step: schedule.Launch, dtype: torch.dtype, target: str, tensors: dict[str, Tensor]
) -> tuple[PtxKernel, list[Tensor]]:
    """The program of a launch, and its arguments out of these."""
    compiled = compile_variant(Variant.from_launch(step, dtype), target)
    tensors = tensors | {"programs_ptr": torch.from_numpy(step.programs).clone()}
    names = KERNELS[step.kernel].arg_names
    arguments = [tensors[name] for name in names if name in tensors]
    return PtxKernel(compiled.asm["ptx"], compiled.metadata.shared), arguments


def execute(
    grads: Sequence[Tensor],
    spec: FilterSpec,
    target: str = TARGET,
    run: Run = PtxKernel.execute,
    only: str = "",
) -> list[str]:
    """Filter gradients of one dtype in place; the kernels that ran.

    run: how a launch is executed
    only: a kernel without which nothing is executed, on memory that no other has written
    """
    dtype = grads[0].dtype
    signals = [
        signal
        for index, grad in enumerate(grads)
        for signal in signals_of(grad, index, grad.dim() - len(signal_shape(grad.shape, spec)))
    ]
    plan = schedule.build(signals, spec, dtype is torch.float64)
    tensors = tensors_of(plan, grads, float("nan"))
    names = []
    for step in plan.launches:
        if only and step.kernel != only:
            continue
        program, arguments = compiled_launch(step, dtype, target, tensors)
        reachable = [*arguments, *map(storage_of, grads)]
        memory = Memory([tensor_bytes(tensor) for tensor in reachable])
        run(program, len(step.programs), [tensor.data_ptr() for tensor in arguments], memory)
        names.append(step.kernel)
    return names
