"""Residual networks of basic blocks: ResNet-8, -20 and -18, and WRN-56-2."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from specgrad_fl.models.norm import norm


def conv3x3(inner: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inner, out, 3, stride, padding=1, bias=False)


class Shortcut(nn.Sequential):
    """A 1x1 convolution where the block changes its shape."""

    def __init__(self, inner: int, out: int, stride: int) -> None:
        super().__init__(nn.Conv2d(inner, out, 1, stride, bias=False), norm(out))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, activation after the sum."""

    def __init__(self, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(inner, out, stride)
        self.norm1 = norm(out)
        self.conv2 = conv3x3(out, out)
        self.norm2 = norm(out)
        reshapes = stride != 1 or inner != out
        self.shortcut = Shortcut(inner, out, stride) if reshapes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, stages of basic blocks named ``layer1`` onwards, global average, linear head."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        widths: Sequence[int],
        depths: Sequence[int],
        stem_width: int,
        stem: str = "cifar",
    ) -> None:
        super().__init__()
        if stem not in ("cifar", "imagenet"):
            raise ValueError(f"stem is {stem!r}; choose cifar or imagenet")
        if stem == "cifar":
            self.conv1 = conv3x3(in_channels, stem_width)
            self.pool: nn.Module = nn.Identity()
        else:
            self.conv1 = nn.Conv2d(in_channels, stem_width, 7, 2, padding=3, bias=False)
            self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.norm1 = norm(stem_width)
        inner = stem_width
        self.stages = []
        for index, (width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
            stride = 1 if index == 1 else 2
            blocks = [BasicBlock(inner, width, stride)]
            blocks += [BasicBlock(width, width, 1) for _ in range(depth - 1)]
            self.add_module(f"layer{index}", nn.Sequential(*blocks))
            self.stages.append(f"layer{index}")
            inner = width
        self.head = nn.Linear(inner, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norm1(self.conv1(x))))
        for stage in self.stages:
            x = getattr(self, stage)(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet8(num_classes: int, in_channels: int = 3) -> ResNet:
    """One block a stage: for trials on a CPU."""
    return ResNet(num_classes, in_channels, (16, 32, 64), (1, 1, 1), 16)


def resnet20(num_classes: int, in_channels: int = 3) -> ResNet:
    """The paper's backbone for small images."""
    return ResNet(num_classes, in_channels, (16, 32, 64), (3, 3, 3), 16)


def resnet18(num_classes: int, in_channels: int = 3, stem: str = "cifar") -> ResNet:
    """``stem="cifar"`` is 3x3 without pooling, ``"imagenet"`` 7x7/2 with max-pooling."""
    return ResNet(num_classes, in_channels, (64, 128, 256, 512), (2, 2, 2, 2), 64, stem)


def wrn56_2(num_classes: int, in_channels: int = 3) -> ResNet:
    """ResNet-56 at twice the width, with activation after the sum."""
    return ResNet(num_classes, in_channels, (32, 64, 128), (9, 9, 9), 32)
