"""The convolutional networks for handwritten characters and for text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FemnistCNN(nn.Module):
    """Two 5x5 convolutions with pooling, a wide hidden layer, a linear head."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        side = image_size // 4
        if side < 1:
            raise ValueError(f"image size {image_size} is too small to be halved twice")
        self.conv1 = nn.Conv2d(in_channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.hidden = nn.Linear(64 * side * side, 2048)
        self.head = nn.Linear(2048, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(F.relu(self.hidden(x.flatten(1))))


class TextCNN(nn.Module):
    """Embedding, convolutions of several widths over time, maximum over time, linear head."""

    def __init__(
        self,
        num_classes: int,
        vocabulary: int,
        embedding: int,
        widths: tuple[int, ...],
        channels: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(embedding, channels, width) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels * len(widths), num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        longest = max(conv.kernel_size[0] for conv in self.convs)  # type: ignore[index]
        x = F.pad(x, (0, max(0, longest - x.shape[-1])))
        features = [F.relu(conv(x)).amax(-1) for conv in self.convs]
        return self.head(self.dropout(torch.cat(features, 1)))


def femnist_cnn(num_classes: int, in_channels: int = 1, image_size: int = 28) -> FemnistCNN:
    """As in the LEAF benchmark."""
    return FemnistCNN(num_classes, in_channels, image_size)


def textcnn(num_classes: int, vocabulary: int = 30_000, dropout: float = 0.5) -> TextCNN:
    """Embedding 128, widths 3, 4 and 5 with 128 channels each."""
    return TextCNN(num_classes, vocabulary or 30_000, 128, (3, 4, 5), 128, dropout)
