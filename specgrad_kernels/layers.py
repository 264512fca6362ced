"""Which tensors of an architecture are filtered."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

Selector = str | Callable[[str, nn.Parameter], bool]


@dataclass(frozen=True)
class Selection:
    """The parameters taken, by name, and for every parameter the reason."""

    taken: dict[str, nn.Parameter]
    reasons: dict[str, str]


def select_layers(model: nn.Module, select: Selector = "auto") -> Selection:
    """Convolution weights (first version)."""
    convolutions = {
        f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    }
    taken, reasons = {}, {}
    for name, parameter in model.named_parameters():
        if callable(select):
            take = bool(select(name, parameter))
        elif select == "auto":
            take = name in convolutions
        else:
            take = re.search(select, name) is not None
        reasons[name] = "taken" if take else "not taken"
        if take:
            taken[name] = parameter
    return Selection(taken, reasons)
