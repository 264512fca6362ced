"""From a configuration and arrays to a client runner, in this process or in a worker."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specgrad_fl import methods, models
from specgrad_fl.batches import Format, Samples
from specgrad_fl.board import Board
from specgrad_fl.client import AMP_DTYPES, ClientRunner
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError
from specgrad_fl.flat import FlatModel


@dataclass(frozen=True)
class Blueprint:
    """Everything but the arrays, in a form that JSON can carry to a worker."""

    config: Config
    kind: Format
    inputs: models.Inputs

    def as_dict(self) -> dict[str, Any]:
        return {
            "config": self.config.as_dict(),
            "kind": self.kind.as_dict(),
            "inputs": dict(self.inputs.__dict__),
        }

    @staticmethod
    def parse(fields: dict[str, Any]) -> Blueprint:
        """The inverse of :meth:`as_dict`."""
        return Blueprint(
            Config(**fields["config"]),
            Format.parse(fields["kind"]),
            models.Inputs(**fields["inputs"]),
        )


def device_of(config: Config) -> torch.device:
    """The configured device, once it is known to work."""
    try:
        device = torch.device(config.device)
        torch.zeros(1, device=device).item()
        # the same seed must give the same bits on a GPU too, and float32 means float32
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {config.device!r} cannot be used: {reason}") from error
    return device


_AMP_PROBE = """
import torch
layer = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3), torch.nn.Flatten(), torch.nn.Linear(64, 8))
with torch.autocast("cpu", torch.{dtype}):
    loss = layer(torch.randn(32, 16, 4, 4)).float().sum()
loss.backward()
"""


def check_amp(config: Config) -> None:
    """Try mixed precision in a process of its own: some CPUs announce what they cannot run."""
    if config.amp == "off" or torch.device(config.device).type != "cpu":
        return
    dtype = str(AMP_DTYPES[config.amp]).removeprefix("torch.")
    probe = subprocess.run(
        [sys.executable, "-c", _AMP_PROBE.format(dtype=dtype)], capture_output=True, check=False
    )
    if probe.returncode:
        ending = (probe.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        reason = ending or f"it ends with signal {-probe.returncode}"
        raise ConfigError(
            f"amp {config.amp!r} does not work on this CPU ({reason}); use amp 'off', or try the "
            "environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE"
        )


def split_clients(arrays: dict[str, Tensor]) -> list[Tensor]:
    """The partition, which travels as two arrays."""
    return list(arrays["indices"].split(arrays["sizes"].tolist()))


def count_of(arrays: dict[str, Tensor], part: str) -> int:
    """Samples to be scored: of the ``test`` set, or ``held_out``."""
    if part == "test":
        return len(arrays["test_y"])
    return len(arrays["held_out"]) if "held_out" in arrays else 0


def federation_of(
    blueprint: Blueprint, arrays: dict[str, Tensor], flat: FlatModel
) -> methods.Federation:
    """What a method may know."""
    classes = blueprint.inputs.num_classes
    labels = arrays["train_y"]
    rows = [torch.bincount(labels[held], minlength=classes) for held in split_clients(arrays)]
    return methods.Federation(
        sizes=arrays["sizes"],
        histograms=torch.stack(rows),
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
    return FlatModel(model, device_of(config))


def build_runner(
    blueprint: Blueprint, arrays: dict[str, Tensor], flat: FlatModel, board: Board
) -> ClientRunner:
    """A runner over arrays and board, whoever owns their memory."""
    config = blueprint.config
    method = methods.build(config.method, config.options, federation_of(blueprint, arrays, flat))
    samples = Samples(blueprint.kind, arrays, device_of(config))
    partition = dict(enumerate(split_clients(arrays)))
    return ClientRunner(config, flat, samples, partition, method, board, arrays.get("held_out"))
