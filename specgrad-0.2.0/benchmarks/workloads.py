"""The gradients that are filtered: the convolution lists of common models, as shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Workload:
    """The filtered layers of one model.

    >>> WORKLOADS["resnet20"].weights
    267696
    """

    name: str
    title: str
    shapes: tuple[Shape, ...]

    @property
    def weights(self) -> int:
        """Samples over all layers."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def longest(self) -> int:
        """Samples of the longest layer."""
        return max(math.prod(shape) for shape in self.shapes)

    def gradients(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
        """White noise, the same in every dtype up to rounding."""
        generator = torch.Generator().manual_seed(seed)
        return [
            torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for shape in self.shapes
        ]


def _stages(stem: int, widths: tuple[int, ...], blocks: int) -> tuple[Shape, ...]:
    """A 3x3 stem and stages of blocks with two 3x3 convolutions each."""
    shapes: list[Shape] = [(stem, 3, 3, 3)]
    channels = stem
    for width in widths:
        for _ in range(blocks):
            shapes += [(width, channels, 3, 3), (width, width, 3, 3)]
            channels = width
    return tuple(shapes)


def _densenet121() -> tuple[Shape, ...]:
    """Stem, then 1x1 bottleneck to 128 channels and 3x3 to 32 in every dense layer."""
    shapes: list[Shape] = [(64, 3, 3, 3)]
    for first, layers in ((64, 6), (128, 12), (256, 24), (512, 16)):
        for layer in range(layers):
            shapes += [(128, first + 32 * layer, 1, 1), (32, 128, 3, 3)]
    return tuple(shapes)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("resnet20", "ResNet-20", _stages(16, (16, 32, 64), 3)),
        Workload("resnet18", "ResNet-18", _stages(64, (64, 128, 256, 512), 2)),
        Workload("wrn56_2", "WRN-56-2", _stages(32, (32, 64, 128), 9)),
        Workload("densenet121", "DenseNet-121", _densenet121()),
        Workload("vit", "ViT patch embedding", ((512, 3, 4, 4),)),
        Workload("long", "one layer of 16.7 M", ((2**24,),)),
    )
}
