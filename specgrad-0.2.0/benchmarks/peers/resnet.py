"""ResNet-20 and ResNet-8 for small images, with GroupNorm of two groups."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def _conv3x3(channels: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where shapes change."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv3x3(channels, width, stride), nn.GroupNorm(2, width)
        self.conv2, self.norm2 = _conv3x3(width, width), nn.GroupNorm(2, width)
        self.shortcut = nn.Sequential()
        if channels != width:
            projection = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(2, width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet20(classes: int = 10, blocks_a_width: int = 3) -> nn.Module:
    """A new, randomly initialised network; with one block for each width it is ResNet-8.

    >>> sum(parameter.numel() for parameter in resnet20().parameters())
    272474
    """
    blocks: list[nn.Module] = []
    channels = 16
    for width in (16, 32, 64):
        for _ in range(blocks_a_width):
            blocks.append(Block(channels, width, stride=1 + (channels != width)))
            channels = width
    return nn.Sequential(
        _conv3x3(3, 16),
        nn.GroupNorm(2, 16),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
