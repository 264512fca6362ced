"""Build the parts of a run, here or in a worker: model, federation, client runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from specgrad_data import Dataset
from torch import Tensor

from specgrad_fl import machine, methods, models
from specgrad_fl.client import NO_SAMPLES, ClientRunner
from specgrad_fl.config import Config
from specgrad_fl.partition import label_counts, split
from specgrad_fl.samples import Format, Samples
from specgrad_fl.stack import StackedRunner
from specgrad_fl.vectors import FlatModel, SharedVectors


def inputs_of(dataset: Dataset) -> models.Inputs:
    """Classes, channels and size of the samples, as a model takes them."""
    if dataset.is_text:
        return models.Inputs(dataset.num_classes, vocabulary=dataset.vocabulary)
    _, channels, height, _ = dataset.train_x.shape
    return models.Inputs(dataset.num_classes, channels, height)


@dataclass(frozen=True)
class Blueprint:
    """Everything but the arrays, serialisable as JSON for workers."""

    config: Config
    form: Format
    inputs: models.Inputs

    @staticmethod
    def parse(fields: dict[str, Any]) -> Blueprint:
        """Rebuild a blueprint from ``asdict`` that went through JSON."""
        return Blueprint(
            Config(**fields["config"]),
            Format(**fields["form"]),
            models.Inputs(**fields["inputs"]),
        )


def federation_of(
    blueprint: Blueprint, arrays: dict[str, Tensor], flat: FlatModel
) -> methods.Federation:
    """Sizes, label counts and layers of a federation, as a method takes them."""
    classes = blueprint.inputs.num_classes
    return methods.Federation(
        sizes=arrays["sizes"],
        histograms=label_counts(split(arrays), arrays["train_y"], classes),
        test_histogram=torch.bincount(arrays["test_y"], minlength=classes),
        size=flat.size,
        groups=layer_groups(flat),
        server_lr=blueprint.config.server_lr,
    )


def layer_groups(flat: FlatModel) -> tuple[slice, ...]:
    """The model's own groups, or runs of tensors that each end at a bias.

    >>> from torch import nn
    >>> layer_groups(FlatModel(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))))
    (slice(0, 9, None), slice(9, 12, None))
    """
    own = getattr(flat.model, "layer_groups", None)
    if own is not None:
        return tuple(
            slice(flat.segments[names[0]].start, flat.segments[names[-1]].stop) for names in own()
        )
    groups, start = [], 0
    for name, segment in flat.segments.items():
        if "bias" in name:
            groups.append(slice(start, segment.stop))
            start = segment.stop
    if start < flat.size:
        groups.append(slice(start, flat.size))
    return tuple(groups)


def build_model(blueprint: Blueprint) -> FlatModel:
    """The model with its initial weights, on its device."""
    config = blueprint.config
    model = models.build_seeded(config.model, blueprint.inputs, config.model_options, config.seed)
    return FlatModel(model, machine.device_of(config))


class HeldSamples(Mapping[int, Tensor]):
    """Sample indices by client, cut from one tensor when asked for: a tensor is a kilobyte.

    >>> HeldSamples(torch.tensor([7, 8, 9]), torch.tensor([2, 1]))[1]
    tensor([9])
    """

    def __init__(self, indices: Tensor, sizes: Tensor) -> None:
        self._indices, self._ends = indices, [0, *sizes.cumsum(0).tolist()]

    def __getitem__(self, client: int) -> Tensor:
        if not 0 <= client < len(self):
            raise KeyError(client)
        return self._indices[self._ends[client] : self._ends[client + 1]]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


def build_runner(
    blueprint: Blueprint, arrays: dict[str, Tensor], flat: FlatModel, board: SharedVectors
) -> ClientRunner:
    """Client runner on these arrays and shared vectors."""
    config = blueprint.config
    method = methods.build(config.method, config.options, federation_of(blueprint, arrays, flat))
    samples = Samples(blueprint.form, arrays, machine.device_of(config))
    partition = HeldSamples(arrays["indices"], arrays["sizes"])
    held_out = arrays.get("held_out", NO_SAMPLES)
    runner = StackedRunner if config.clients_in_a_stack > 1 else ClientRunner
    return runner(config, flat, samples, partition, method, board, held_out)
