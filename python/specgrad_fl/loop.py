"""The filter as one would write it without the op: torch.fft, layer by layer.

It is here to be compared with, in time and in result; ``filter_backend = "loop"`` selects it.
"""

from __future__ import annotations

import torch
from torch import nn

from specgrad_kernels import FilterSpec
from specgrad_kernels.layers import select_layers


class LoopPlan:
    """rFFT, mask, inverse rFFT of each selected gradient, in its own precision.

    >>> layer = nn.Conv2d(3, 8, 3)
    >>> layer(torch.randn(1, 3, 8, 8)).sum().backward()
    >>> LoopPlan(layer, FilterSpec("fft", 0.05), "all_conv").filter_grads_()
    >>> abs(float(layer.weight.grad.mean())) < 1e-5
    True
    """

    def __init__(self, model: nn.Module, spec: FilterSpec, select: str) -> None:
        if spec.method != "fft" or spec.order is not None:
            raise ValueError(
                f"backend 'loop' has filter 'fft' in the tensor's own order alone; got "
                f"{spec.method!r} and order {spec.order!r}; choose another backend"
            )
        taken = select_layers(model, select).taken
        self.names = tuple(taken)
        self._layers = [(p, spec.cutoff(p.numel(), i)) for i, p in enumerate(taken.values())]

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
