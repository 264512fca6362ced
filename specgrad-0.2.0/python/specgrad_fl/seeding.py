"""Random numbers that depend on what they are for, never on the order in which work was done.

Every draw has a seed derived from the run's seed and its purpose, such as round and client. So
a resumed run needs no saved generator, and any number of workers draws the same numbers.
"""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose.

    >>> derive(0, "sampling", 3) == derive(0, "sampling", 3) != derive(0, "sampling", 4)
    True
    """
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
