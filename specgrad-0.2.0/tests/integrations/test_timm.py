"""Which layers of timm's models are taken: the same net gives the same answer."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from specgrad_kernels import select_layers
from specgrad_kernels.flow import DENSE, GATE, SHORTCUT, TRANSITION

timm = pytest.importorskip("timm")

CHANNELS_LAST = "linear layer of a channels-last map: a 1x1 convolution"


def make(name: str, **options: object) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, **options)


def left_out(model: nn.Module) -> Counter[str]:
    """Number of convolutions left out, by reason."""
    selection = select_layers(model)
    every = select_layers(model, "all_conv").taken
    return Counter(selection.reasons[name] for name in every if name not in selection.taken)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vgg11", {DENSE: 2}),
        ("vgg11_bn", {DENSE: 2}),
        ("res2net50_26w_4s", {SHORTCUT: 4}),
        ("dla34", {SHORTCUT: 4, GATE: 1}),
        ("dla60_res2net", {SHORTCUT: 4, GATE: 1}),
        ("convnext_atto", {TRANSITION: 3}),
        ("convnext_tiny", {TRANSITION: 3}),
        ("resnet18", {SHORTCUT: 3}),
        ("resnet50", {SHORTCUT: 4}),
        ("densenet121", {TRANSITION: 3}),
    ],
)
def test_what_is_left_out(name: str, expected: dict[str, int]) -> None:
    assert left_out(make(name)) == expected


def test_convnext_is_the_same_net_with_linear_layers_and_with_convolutions() -> None:
    linear, convolved = (make("convnext_tiny", conv_mlp=flag) for flag in (False, True))
    one, other = select_layers(linear), select_layers(convolved)
    assert list(one.taken) == list(other.taken)
    assert [p.numel() for p in one.taken.values()] == [p.numel() for p in other.taken.values()]
    assert Counter(one.reasons[name] for name in one.taken)[CHANNELS_LAST] == 36


def test_vgg_gives_its_features() -> None:
    assert all(name.startswith("features.") for name in select_layers(make("vgg11")).taken)


def test_transformers_give_their_patch_embedding() -> None:
    assert list(select_layers(make("vit_tiny_patch16_224")).taken) == ["patch_embed.proj.weight"]
    assert list(select_layers(make("swin_tiny_patch4_window7_224")).taken) == [
        "patch_embed.proj.weight"
    ]
