"""A diagnosis from gradients that the user has: one safetensors file for each client."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from specgrad_fl.errors import ConfigError, RunError
from torch import Tensor, nn

from specgrad_kernels import FilterSpec
from specgrad_study.diagnosis.alignment import Cosines
from specgrad_study.diagnosis.collect import (
    FULL,
    USUAL,
    Checkpoint,
    Request,
    Say,
    changed,
    say_nothing,
    tried_plans,
)
from specgrad_study.diagnosis.disagreement import Disagreement
from specgrad_study.diagnosis.effects import Effects


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of one file."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise RunError(f"there is no gradient file {path}") from error
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is not a safetensors file: {error}") from error


def chosen_layers(tensors: Mapping[str, Tensor], select: str) -> list[str]:
    """The tensors to filter: those that match ``select``, or else convolution kernels.

    Files hold no model, so kernels are told by their shape: three dimensions or more.
    """
    if select:
        try:
            pattern = re.compile(select)
        except re.error as error:
            raise ConfigError(f"--select {select!r} is no regular expression: {error}") from error
        names = [name for name in tensors if pattern.search(name)]
    else:
        names = [name for name, tensor in tensors.items() if tensor.dim() >= 3]
    if not names:
        raise ConfigError(
            f"--select {select!r} matches none of the {len(tensors)} tensors; name the layers to "
            "filter by a regular expression"
            if select
            else "no tensor has three dimensions or more, as convolutions have; name the layers "
            "to filter by --select"
        )
    return names


def from_files(
    paths: Sequence[Path],
    weights: Sequence[float] = (),
    select: str = "",
    request: Request = USUAL,
    say: Say = say_nothing,
) -> Checkpoint:
    """Snapshot of the clients, and the mean cosine of their gradients.

    weights: of the clients, such as their numbers of samples; by default all the same
    select: regular expression for the tensors to filter
    request: of which the filter and those to try matter here

    One file is in memory at a time.
    """
    if len(paths) < 2:
        raise RunError(f"{len(paths)} gradient file was given; disagreement needs two clients")
    if weights and len(weights) != len(paths):
        raise ConfigError(f"--weights has {len(weights)} numbers for {len(paths)} files")
    first = read(paths[0])
    filtered = chosen_layers(first, select)
    measured = [name for name, tensor in first.items() if tensor.dim() >= 2 or name in filtered]
    spec = changed(FilterSpec(), request.changes)
    layers = {name: _without_memory(first[name]) for name in filtered}
    effects = Effects(tried_plans(list(layers.items()), spec, request), layers, filtered)
    meter, cosines = Disagreement(filtered, spec, measured=measured), Cosines()
    weights = weights or [1.0] * len(paths)
    for number, (path, weight) in enumerate(zip(paths, weights, strict=True), start=1):
        say(f"file {number} of {len(paths)}")
        tensors = read(path)
        try:
            meter.add(weight, tensors)
            cosines.add(tensors)
            for name, layer in layers.items():
                layer.grad = tensors[name]
            effects.add(weight)
        except (ValueError, TypeError) as error:
            raise RunError(f"{path}: {error}") from error
    return Checkpoint(
        round=0,
        clients=list(range(len(paths))),
        loss=None,
        snapshot=meter.result(),
        cosine=cosines.mean(),
        effects={FULL: effects.result()},
    )


def _without_memory(tensor: Tensor) -> nn.Parameter:
    """A parameter for gradients like this one, whose own values nobody needs."""
    one = torch.zeros((), dtype=tensor.dtype)
    return nn.Parameter(one.expand(tensor.shape), requires_grad=False)
