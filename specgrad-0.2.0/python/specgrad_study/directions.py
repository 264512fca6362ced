"""ResNets whose convolutions lose one direction of their gradient: see ``DIRECTIONS``.

A model, so that it sees the inputs of its layers: ``model = "specgrad_study.directions:resnet8"``
with ``model_options = {direction = "first"}``, and no filter. The directions are buffers: the
server averages those of a round's clients and sends them down with the weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from specgrad_fl import models
from torch import Tensor, nn

from specgrad_kernels import select_layers
from specgrad_study.paper.plain import without_norms

DIRECTIONS = {
    "current": "the mean input patch of the batch at hand",
    "first": "the mean input patch of a client's first batch in round 0, averaged over its clients",
    "random": "a direction drawn at random for each layer",
    "ones": "all ones: the channel mean, as `centralize` removes it",
}


class Directions(nn.Module):
    """One unit vector for each layer, and the number of rounds that they have seen.

    every: rounds after which ``first`` is taken anew; 0 for never
    """

    age: Tensor

    def __init__(self, layers: dict[str, nn.Conv2d], kind: str, every: int) -> None:
        super().__init__()
        self.kind, self.every = kind, every
        self.starts, self.taking = False, False
        self.register_buffer("age", torch.zeros((), dtype=torch.float64))
        for number, layer in enumerate(layers.values()):
            weights = layer.weight[0].numel()
            draw = torch.Generator().manual_seed(number)
            ones = torch.ones(weights)
            unit = torch.randn(weights, generator=draw) if kind == "random" else ones
            self.register_buffer(f"layer{number}", unit / unit.norm())
            layer.register_forward_pre_hook(functools.partial(self._see, number))
            layer.weight.register_hook(functools.partial(self._remove, number))

    def train(self, mode: bool = True) -> Directions:
        """A client begins: its first batch may give new directions."""
        self.starts = mode
        return super().train(mode)

    def begin(self) -> None:
        """Before every batch: count the rounds, and decide whether directions are taken."""
        if self.training:
            rounds = round(self.age.item())
            due = rounds == 0 or (self.every and rounds % self.every == 0)
            self.taking = self.kind == "current" or bool(
                self.kind == "first" and self.starts and due
            )
            self.age += self.starts
            self.starts = False

    def of(self, number: int) -> Tensor:
        """Unit vector of a layer."""
        unit = self.get_buffer(f"layer{number}")
        return unit / unit.norm()

    def _see(self, number: int, layer: nn.Conv2d, inputs: tuple[Tensor]) -> None:
        if self.training and self.taking:
            with torch.no_grad():
                mean = mean_patch(layer, inputs[0])
                self.get_buffer(f"layer{number}").copy_(mean / mean.norm().clamp(min=1e-12))

    def _remove(self, number: int, gradient: Tensor) -> Tensor:
        rows, unit = gradient.reshape(len(gradient), -1), self.of(number)
        return (rows - torch.outer(rows @ unit, unit)).view_as(gradient)


def mean_patch(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """Mean over samples and places of what one output of a convolution sees, ``[In * H * W]``."""
    assert isinstance(layer.padding, tuple)
    mean = inputs.mean(0, keepdim=True)
    patches = F.unfold(mean, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return patches.mean(2)[0]


def _directed(model: nn.Module, direction: str, every: int, norms: bool) -> nn.Module:
    if direction not in DIRECTIONS:
        raise ValueError(f"direction is {direction!r}; choose one of {', '.join(DIRECTIONS)}")
    names = [name.removesuffix(".weight") for name in select_layers(model).taken]
    layers = {name: model.get_submodule(name) for name in names}
    model = model if norms else without_norms(model)
    convolutions = {name: each for name, each in layers.items() if isinstance(each, nn.Conv2d)}
    model.directions = Directions(convolutions, direction, every)
    model.register_forward_pre_hook(lambda module, inputs: module.directions.begin())
    return model


def _variant(build: Callable[[int, int], nn.Module]) -> Callable[..., nn.Module]:
    """A ResNet, with norm layers or without, that loses one direction in each convolution."""

    def make(
        num_classes: int,
        in_channels: int = 3,
        direction: str = "first",
        every: int = 0,
        norms: bool = True,
    ) -> nn.Module:
        return _directed(build(num_classes, in_channels), direction, every, norms)

    return make


resnet8, resnet20 = _variant(models.resnet8), _variant(models.resnet20)
