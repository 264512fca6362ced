"""Tensors and a few facts in one safetensors file, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialised
from torch import Tensor

from specgrad_fl import atomic
from specgrad_fl.errors import RunError


def save(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Replace ``path``. ``facts`` must be fit for JSON."""
    with atomic.replacing(path) as temporary:
        contents = {name: tensor.contiguous() for name, tensor in tensors.items()}
        temporary.write_bytes(serialised(contents, metadata={"facts": json.dumps(facts)}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`save` stored."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            facts = json.loads(metadata["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except FileNotFoundError as error:
        raise RunError(f"there is no checkpoint {path}") from error
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise RunError(
            f"{path} is not a checkpoint of this trainer or is damaged: {error!r}"
        ) from error
