"""ResNets without norm layers, for the question whether what a filter does depends on them."""

from __future__ import annotations

from specgrad_fl import models
from torch import nn


def replaced(model: nn.Module, old: type[nn.Module], new: type[nn.Module]) -> nn.Module:
    """The model with every module of one class replaced by a new one of another."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, old):
                setattr(module, name, new())
    return model


def without_norms(model: nn.Module) -> nn.Module:
    """The model with every GroupNorm replaced by nothing."""
    return replaced(model, nn.GroupNorm, nn.Identity)


def resnet8(num_classes: int, in_channels: int = 3) -> nn.Module:
    """The bundled ResNet-8 without norm layers."""
    return without_norms(models.resnet8(num_classes, in_channels))


def resnet20(num_classes: int, in_channels: int = 3) -> nn.Module:
    """The bundled ResNet-20 without norm layers."""
    return without_norms(models.resnet20(num_classes, in_channels))
