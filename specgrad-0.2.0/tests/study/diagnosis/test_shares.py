"""Shares of gradient energy in channel means against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from specgrad_study.diagnosis.shares import by_input, shares
from torch import nn


def means_behind(layer: nn.Module, samples: int = 256, width: int = 2000) -> float:
    """Share of the channel means in a linear layer fed by normal values through ``layer``."""
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(samples, width, generator=draw, dtype=torch.float64)
    linear = nn.Linear(width, 16, dtype=torch.float64)
    errors = torch.randn(samples, 16, generator=draw, dtype=torch.float64)
    (linear(layer(values)) * errors).sum().backward()
    return shares(linear)["weight"][0]


@pytest.mark.parametrize(
    ("layer", "mean", "square"),
    [
        pytest.param(nn.ReLU(), 1 / math.sqrt(2 * math.pi), 1 / 2, id="ReLU"),
        pytest.param(
            nn.GELU(),
            1 / (2 * math.sqrt(math.pi)),
            # E z^2 Phi(z)^2 for a standard normal z
            1 / 3 + 1 / (2 * math.sqrt(3) * math.pi),
            id="GELU",
        ),
    ],
)
def test_the_mean_behind_an_activation(layer: nn.Module, mean: float, square: float) -> None:
    assert means_behind(layer) == pytest.approx(mean**2 / square, abs=0.01)


def test_no_mean_behind_a_layer_norm() -> None:
    assert means_behind(nn.LayerNorm(2000, dtype=torch.float64)) < 1e-12


def test_layers_are_grouped_by_what_feeds_them() -> None:
    found = {
        "blocks.0.attention.qkv.weight": (0.0, 0.1),
        "blocks.0.mlp.0.weight": (0.2, 0.3),
        "blocks.0.mlp.3.weight": (0.5, 0.6),
        "head.weight": (0.9, 0.9),
    }
    grouped = by_input(found)
    assert grouped == {"LayerNorm": (0.1, 0.2), "activation": (0.5, 0.6)}
