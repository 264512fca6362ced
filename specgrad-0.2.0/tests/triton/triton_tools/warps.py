"""Races between the warps of one program, which only a barrier puts in order.

``Phases`` sees every access and reports two warps that touch a byte between two barriers, one of
them writing, whatever order they ran in. ``run_apart`` is the opposite instrument: warps that run
on their own from barrier to barrier, in random order, so that a missing barrier gives wrong values.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from triton_tools.ptx.machine import Machine, Memory, PtxKernel

SPACES = ("global", "shared")


class Race(Exception):
    """Two warps whose order no barrier decides."""


class Phases:
    """Who loaded and who stored each pair of bytes since the last barrier."""

    def __init__(self, spaces: Sequence[str] = SPACES) -> None:
        self._spaces = spaces
        self._touched: dict[tuple[str, bool], list[np.ndarray]] = {}
        self.barriers = 0

    def touch(
        self, space: str, threads: np.ndarray, addresses: np.ndarray, data: np.ndarray | int
    ) -> None:
        """Note an access; ``[lanes, 2]`` bytes are one place."""
        stored = isinstance(data, np.ndarray)
        size = data.shape[1] if isinstance(data, np.ndarray) else data
        pairs = (addresses.astype(np.int64)[:, None] + np.arange(0, size, 2)) // 2
        who = np.broadcast_to(threads.astype(np.int64)[:, None] // 32, pairs.shape)
        what = data.view(np.uint16) if isinstance(data, np.ndarray) else np.zeros_like(pairs)
        note = np.stack([pairs.ravel(), who.ravel(), what.astype(np.int64).ravel()])
        self._touched.setdefault((space, stored), []).append(note)

    def barrier(self) -> None:
        """Judge what happened since the last one."""
        self.barriers += 1
        for space in self._spaces:
            stores = self._touched.get((space, True))
            if stores:
                loads = self._touched.get((space, False), [])
                self._judge(space, np.concatenate(stores, 1), loads)
        self._touched.clear()

    def _judge(self, space: str, stores: np.ndarray, loads: list[np.ndarray]) -> None:
        place, who, what = stores
        order = np.argsort(place, kind="stable")
        place, who, what = place[order], who[order], what[order]
        # several warps may store the same value: then their order changes nothing
        again = place[1:] == place[:-1]
        if (again & (who[1:] != who[:-1]) & (what[1:] != what[:-1])).any():
            raise Race(f"two warps store different values in {space} memory without a barrier")
        if not loads:
            return
        read = np.unique(np.concatenate(loads, 1)[:2], axis=1)
        first = np.searchsorted(place, read[0], side="left")
        last = np.searchsorted(place, read[0], side="right")
        mixed = np.zeros(len(place) + 1, dtype=np.int64)
        for warp in np.unique(who):
            # how many stores of this warp lie before each position
            mixed[1:] = np.cumsum(who == warp)
            if (((mixed[last] - mixed[first]) > 0) & (read[1] != warp)).any():
                raise Race(f"a warp loads from {space} memory what another stores")


def run_together(
    program: PtxKernel,
    grid: int,
    values: Sequence[int],
    memory: Memory,
    spaces: Sequence[str] = SPACES,
) -> int:
    """All threads in step, every access to these spaces watched; the barriers that were passed."""
    passed = 0
    for index in range(grid):
        watch = Phases(spaces)
        shared = program.shared_memory()
        Machine(program.kernel, memory, shared, values, index, watch=watch).run()
        passed += watch.barriers
        watch.barrier()
    return passed


def run_apart(
    program: PtxKernel, grid: int, values: Sequence[int], memory: Memory, seed: int
) -> None:
    """Each warp on its own until its next barrier, in random order."""
    for index in range(grid):
        order = random.Random(seed * 1_000_003 + index)
        shared = program.shared_memory()
        warps = [
            Machine(program.kernel, memory, shared, values, index, warp=warp)
            for warp in range(program.kernel.threads // 32)
        ]
        while not all(warp.ended for warp in warps):
            order.shuffle(warps)
            for warp in warps:
                warp.run()
            if len({warp.ended for warp in warps}) > 1:
                raise Race("a warp waits at a barrier that another never reaches")
