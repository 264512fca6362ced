"""A ResNet-8 without norm layers, for the question whether what a filter does depends on them."""

from __future__ import annotations

from specgrad_fl.models import resnet8 as with_norms
from torch import nn


def resnet8(num_classes: int, in_channels: int = 3) -> nn.Module:
    """The bundled ResNet-8 with every norm layer replaced by nothing."""
    model = with_norms(num_classes, in_channels)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GroupNorm):
                setattr(module, name, nn.Identity())
    return model
