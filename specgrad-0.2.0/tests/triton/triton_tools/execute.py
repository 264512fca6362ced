"""Filters gradients by executing the compiled PTX of every launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specgrad_kernels.backends.triton import schedule
from specgrad_kernels.backends.triton.signals import signals_of
from specgrad_kernels.backends.triton.targets import KERNELS
from specgrad_kernels.layout import signal_shape
from specgrad_kernels.spec import FilterSpec
from triton_tools.offline import Variant, compile_variant
from triton_tools.ptx import PtxKernel
from triton_tools.ptx.machine import Memory, tensor_bytes

Run = Callable[[PtxKernel, int, Sequence[int], Memory], object]

TARGET = "sm_80"


def storage_of(tensor: Tensor) -> Tensor:
    """All memory of a tensor's storage as one contiguous tensor."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((elements,), (1,), 0)


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
    double = dtype is torch.float64
    signals = [
        signal
        for index, grad in enumerate(grads)
        for signal in signals_of(grad, index, grad.dim() - len(signal_shape(grad.shape, spec)))
    ]
    plan = schedule.build(signals, spec, double)
    real = torch.float64 if double else torch.float32
    tensors = {
        "addresses_ptr": torch.tensor([grad.data_ptr() for grad in grads]),
        "layouts_ptr": torch.from_numpy(plan.table),
        "coefficients_ptr": torch.from_numpy(plan.coefficients),
        "workspace_ptr": torch.full((plan.workspace,), float("nan"), dtype=real),
        "borders_ptr": torch.full((plan.borders,), float("nan"), dtype=dtype),
    }
    names = []
    for step in plan.launches:
        variant = Variant.from_launch(step, dtype)
        if only and step.kernel != only:
            continue
        compiled = compile_variant(variant, target)
        tensors["programs_ptr"] = torch.from_numpy(step.programs)
        kernel = KERNELS[step.kernel]
        arguments = [tensors[name] for name in kernel.arg_names if name in tensors]
        program = PtxKernel(compiled.asm["ptx"], compiled.metadata.shared)
        reachable = [*arguments, *map(storage_of, grads)]
        memory = Memory([tensor_bytes(tensor) for tensor in reachable])
        run(program, len(step.programs), [tensor.data_ptr() for tensor in arguments], memory)
        names.append(step.kernel)
    return names
