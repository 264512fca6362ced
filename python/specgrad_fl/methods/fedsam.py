"""FedSAM: every step takes its gradient where the loss is locally worst."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specgrad_fl.methods.base import Local, Method, at_least


@dataclass(frozen=True)
class Options:
    rho: float = 0.1
    filter_ascent: bool = False

    def __post_init__(self) -> None:
        at_least("rho", self.rho, 0)


class FedSAM(Method):
    """u = filter(gradient at w + rho g/|g|), with g the gradient at w on the same batch."""

    name = "fedsam"
    Options = Options

    def gradient(self, local: Local) -> Tensor:
        loss = local.backward()
        with torch.no_grad():
            if self.options.filter_ascent:
                local.filter_()
            step = self.options.rho / (torch.linalg.vector_norm(local.g) + 1e-7)
            # restored by copy: subtracting the step again would not give the same bits
            here = local.w.clone()
            local.w.add_(local.g * step)
        local.backward()
        with torch.no_grad():
            local.w.copy_(here)
        return loss
