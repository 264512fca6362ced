"""Model and data: a small convolutional network on the digits of one partition."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


def load_part(part: int, parts: int) -> list[tuple[Tensor, Tensor]]:
    """The batches of one client: every so-manieth image."""
    digits = load_digits()
    x = torch.tensor(digits.images[part::parts], dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target[part::parts])
    return list(zip(x.split(50), y.split(50), strict=True))
