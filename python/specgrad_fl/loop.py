"""The filter as one would write it without the op: torch.fft, layer by layer.

It is here to be compared with, in time and in result; ``filter_backend = "loop"`` selects it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from specgrad_kernels import FilterSpec


class LoopPlan:
    """rFFT, mask, inverse rFFT of each gradient, in its own precision.

    >>> weight = nn.Parameter(torch.zeros(8, 3, 3, 3))
    >>> weight.grad = torch.ones_like(weight)
    >>> LoopPlan({"conv.weight": weight}, FilterSpec("fft", 0.05)).filter_grads_()
    >>> float(weight.grad.abs().max()) < 1e-6
    True
    """

    NAME = "loop"

    def __init__(self, parameters: Mapping[str, nn.Parameter], spec: FilterSpec) -> None:
        if spec.method != "fft" or spec.order is not None:
            raise ValueError(
                f"backend 'loop' has the filter fft in the tensor's own order alone, and "
                f"{spec.method!r} with order {spec.order!r} was asked for; choose another backend"
            )
        spec.check_count(len(parameters))
        self.spec = spec
        self.names = list(parameters)
        self._layers = [(p, spec.cutoff(p.numel(), i)) for i, p in enumerate(parameters.values())]

    @torch.no_grad()
    def filter_grads_(self) -> None:
        """Filter the gradients in place."""
        for parameter, cutoff in self._layers:
            grad = parameter.grad
            if grad is None or cutoff == 0:
                continue
            spectrum = torch.fft.rfft(grad.reshape(-1))
            spectrum[:cutoff] = 0
            grad.copy_(torch.fft.irfft(spectrum, n=grad.numel()).view(grad.shape))
