"""The table of gradient addresses on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8
_NAMES = tuple(f"address{index}" for index in range(BLOCK))


@triton.jit(do_not_specialize=("first", *_NAMES))
def store_addresses(
    pointers,
    first,
    address0,
    address1,
    address2,
    address3,
    address4,
    address5,
    address6,
    address7,
):
    """Write eight addresses that came as arguments."""
    target = pointers + first
    tl.store(target, address0.to(tl.int64))
    tl.store(target + 1, address1.to(tl.int64))
    tl.store(target + 2, address2.to(tl.int64))
    tl.store(target + 3, address3.to(tl.int64))
    tl.store(target + 4, address4.to(tl.int64))
    tl.store(target + 5, address5.to(tl.int64))
    tl.store(target + 6, address6.to(tl.int64))
    tl.store(target + 7, address7.to(tl.int64))


def empty_table(addresses: int, device: torch.device) -> Tensor:
    """Room for so many addresses, in whole blocks."""
    return torch.empty(-(-addresses // BLOCK) * BLOCK, dtype=torch.int64, device=device)


def upload(table: Tensor, addresses: Sequence[int]) -> None:
    """Copy addresses to the device; the host does not wait.

    The source is page-locked, and PyTorch reuses such memory only after the copy is done.
    """
    source = torch.tensor(addresses, dtype=torch.int64, pin_memory=table.is_cuda)
    table[: len(addresses)].copy_(source, non_blocking=True)


def bake(table: Tensor, addresses: Sequence[int]) -> None:
    """Write addresses by kernels that carry them as arguments.

    In a CUDA graph no host memory may be read at replay, and none need be.
    """
    for first in range(0, len(addresses), BLOCK):
        block = list(addresses[first : first + BLOCK])
        block += block[-1:] * (BLOCK - len(block))
        store_addresses[(1,)](table, first, *block)
