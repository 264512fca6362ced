"""Tensors and a few facts in one safetensors file, written whole or not at all.

The file holds a digest of its contents, so that a changed byte is noticed when it is read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialised
from torch import Tensor

from specgrad_fl import atomic
from specgrad_fl.errors import RunError

DIGEST = "sha256"


def digest(tensors: dict[str, Tensor], facts: dict[str, Any]) -> str:
    """SHA-256 of names, types, shapes, values and facts."""
    found = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(tensor.reshape(-1).view(torch.uint8).cpu().numpy().data)
    return found.hexdigest()


def save(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> str:
    """Replace ``path``; the digest of what was stored. ``facts`` must be fit for JSON."""
    contents = {name: tensor.contiguous() for name, tensor in tensors.items()}
    found = digest(contents, facts)
    # safetensors writes several entries in an order that changes, so all is in one
    metadata = {"facts": json.dumps({**facts, DIGEST: found})}
    atomic.write_bytes(path, serialised(contents, metadata=metadata))
    return found


def load(path: Path, expected: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`save` stored; with ``expected``, only what has that digest.

    Files that were written before there were digests are taken as they are.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts = dict(json.loads((file.metadata() or {})["facts"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise missing(path) from error
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RunError(
            f"{path} is not a checkpoint of this trainer or is damaged ({error!r}); {way_back()}"
        ) from error
    own = facts.pop(DIGEST, "")
    stored = expected or own
    if stored and digest(tensors, facts) != stored:
        raise RunError(f"{path} has changed since it was written; {way_back()}")
    return tensors, facts


def missing(path: Path) -> RunError:
    """The refusal for a file that a run cannot do without."""
    return RunError(f"{path} is missing; {way_back()}")


def way_back() -> str:
    """The end of a refusal about a file of a run."""
    return (
        "restore it from a copy, or begin again in a new folder with `specgrad-fl train --config "
        "RUN/config.toml --out NEW`"
    )
