"""Backbones by name, all with GroupNorm of two groups, and any model of one's own.

>>> model = build("resnet20", Inputs(num_classes=10, in_channels=3, image_size=32))
>>> sum(p.numel() for p in model.parameters())
272474
"""

from __future__ import annotations

import inspect
import traceback
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from specgrad_fl.errors import ConfigError, suggest
from specgrad_fl.models.backbones import MODELS
from specgrad_fl.own_code import chosen
from specgrad_fl.seeding import derive


@dataclass(frozen=True)
class Inputs:
    """What a data set tells a model. ``vocabulary`` is 0 for images."""

    num_classes: int
    in_channels: int = 0
    image_size: int = 0
    vocabulary: int = 0


def build(name: str, inputs: Inputs, options: dict[str, Any] | None = None) -> nn.Module:
    """The model ``name``, or the one that ``module:factory`` returns.

    A factory is called with those of ``num_classes``, ``in_channels``, ``image_size`` and
    ``vocabulary`` that it has parameters for, and with the options.
    """
    options = options or {}
    factory = chosen("model", name, MODELS, "module:factory")
    try:
        parameters = inspect.signature(factory).parameters
    except (ValueError, TypeError) as error:
        raise ConfigError(f"model {name!r}: {error}; name a function or a class") from error
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if not takes_all and option not in parameters:
            allowed = set(parameters) - set(asdict(inputs))
            hint = suggest(option, allowed) if allowed else "it takes none"
            raise ConfigError(f"model {name!r} has no option {option!r}; {hint}")
    known = {k: v for k, v in asdict(inputs).items() if takes_all or k in parameters}
    try:
        model = factory(**{**known, **options})
    except Exception as error:  # whatever a factory of one's own raises
        reason = str(error) if isinstance(error, (ValueError, TypeError)) else repr(error)
        trace = traceback.format_exc() if ":" in name else ""
        raise ConfigError(f"model {name!r} cannot be built: {reason}", trace) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{name} returned {type(model).__name__}; a torch.nn.Module is needed")
    for part, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ConfigError(
                f"model {name!r} has a lazy layer, whose {part} has no size yet; give the layer "
                "its input size, such as nn.Linear(64, 10) for nn.LazyLinear(10)"
            )
    return model


def build_seeded(name: str, inputs: Inputs, options: dict[str, Any] | None, seed: int) -> nn.Module:
    """The model with initial weights that follow from ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "model"))
        return build(name, inputs, options)
