"""DenseNet-121 with a stem for small images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specgrad_fl.models.norm import norm


class DenseLayer(nn.Module):
    """A 1x1 bottleneck and a 3x3 convolution whose output is appended to the input."""

    def __init__(self, inner: int, growth: int) -> None:
        super().__init__()
        self.norm1 = norm(inner)
        self.conv1 = nn.Conv2d(inner, 4 * growth, 1, bias=False)
        self.norm2 = norm(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        y = self.conv2(F.relu(self.norm2(y)))
        return torch.cat([x, y], 1)


class Transition(nn.Module):
    """Halves channels and resolution."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm = norm(inner)
        self.conv = nn.Conv2d(inner, inner // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x))), 2)


class DenseNet(nn.Module):
    """Dense blocks ``dense1`` to ``dense4`` with transitions ``trans1`` to ``trans3`` between."""

    def __init__(
        self, num_classes: int, in_channels: int, depths: tuple[int, ...], growth: int = 32
    ) -> None:
        super().__init__()
        width = 2 * growth
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.body = nn.Sequential()
        for index, depth in enumerate(depths, start=1):
            layers = [DenseLayer(width + growth * j, growth) for j in range(depth)]
            self.body.add_module(f"dense{index}", nn.Sequential(*layers))
            width += growth * depth
            if index < len(depths):
                self.body.add_module(f"trans{index}", Transition(width))
                width //= 2
        self.norm = norm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.body(self.conv1(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def densenet121(num_classes: int, in_channels: int = 3) -> DenseNet:
    """Growth 32, blocks of 6, 12, 24 and 16 layers, compression one half."""
    return DenseNet(num_classes, in_channels, (6, 12, 24, 16))
