"""Where clients run: here, on streams of a GPU, or in worker processes. Results are the same."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, cycle
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from specgrad_fl import building, machine, pool
from specgrad_fl.building import Blueprint
from specgrad_fl.client import ClientResult, ClientRunner
from specgrad_fl.own_code import attributing_errors
from specgrad_fl.pool import Message, Pool
from specgrad_fl.vectors import FlatModel, SharedVectors, TensorShapes, layout_of, mapped, private

# messages to each worker in a round: fewer cost less, more leave less work for the last one
MESSAGES = 8
# names of folders of mapped files, and of the file in them that a living process has locked
SCRATCH, CLAIM = "specgrad-", "claim.lock"


@dataclass(frozen=True)
class Score:
    """Score on the test set or on held-out samples; ``right`` is 1 for each right answer."""

    right: list[int]
    loss: float

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)

    def by_client(self, sizes: list[int]) -> list[float]:
        """The accuracy of each client's part; clients without samples are left out."""
        ends = zip(sizes, accumulate(sizes), strict=True)
        return [sum(self.right[end - size : end]) / size for size, end in ends if size]


class Executor:
    """Trains clients on a board, one after the other in this process; others do it elsewhere.

    Row ``i`` of the board belongs to the ``i``-th client of the round.
    """

    board: SharedVectors
    processes = 1
    _runners: Sequence[ClientRunner] = ()

    def __init__(
        self, blueprint: Blueprint, arrays: dict[str, Tensor], flat: FlatModel, layout: TensorShapes
    ) -> None:
        self._config, self._arrays = blueprint.config, arrays
        self.board = SharedVectors(private(layout))
        self._runner = building.build_runner(blueprint, arrays, flat, self.board)
        self._runners = [self._runner]

    def start(self) -> None:
        """Start what trains the clients, where that is not here already."""

    def train(self, round_number: int, lr: float, clients: list[int]) -> list[ClientResult]:
        """Train every client from the board's weights; reports in the order of ``clients``.

        Where a client may fail to answer, the reports and rows are those of the others.
        """
        sizes = self._arrays["sizes"][clients].tolist()
        stack = self._config.clients_in_a_stack
        if stack > 1:
            chunks = list(_stacks(sizes, stack))
        else:
            chunks = list(_chunks(sizes, MESSAGES * self.processes))
        calls = [(round_number, lr, [clients[row] for row in rows], rows) for rows in chunks]
        reports: dict[int, ClientResult] = {}
        for rows, found in zip(chunks, self._each("train", calls), strict=True):
            reports.update(zip(rows, found, strict=True))
        return [reports[row] for row in range(len(clients))]

    def remarks(self) -> dict[str, Any]:
        """Additions to the record of the last round."""
        steps = [r.graphs.remark() for r in self._runners if r.device.type == "cuda"]
        return {"steps": steps} if steps else {}

    def score(self, part: str = "test") -> Score:
        """Evaluate the board's scored model on all samples of ``test`` or ``held_out``."""
        self._load_scored()
        count = len(self._arrays["test_y" if part == "test" else part])
        right: list[int] = []
        loss = 0.0
        for piece_right, losses in self._each("score", self._pieces(part, count)):
            right += piece_right
            for each in losses:
                loss += each
        return Score(right, loss / count)

    def _pieces(self, part: str, count: int) -> list[tuple[str, int, int]]:
        """Ranges of samples that are scored by one call each."""
        return [(part, 0, count)]

    def memory(self) -> list[float]:
        """Peak memory of each process besides this one, in MiB."""
        return []

    def close(self) -> None:
        """Free processes and memory."""

    def _load_scored(self) -> None:
        self._runner.load_scored()

    def _each(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call the runner's method with each tuple of arguments; results in their order."""
        return [getattr(self._runner, method)(*arguments) for arguments in calls]


class Streams(Executor):
    """Several clients at once on one GPU: a runner with a model of its own on each stream."""

    def __init__(
        self,
        blueprint: Blueprint,
        arrays: dict[str, Tensor],
        flat: FlatModel,
        layout: TensorShapes,
        streams: int,
    ) -> None:
        super().__init__(blueprint, arrays, flat, layout)
        models = [building.build_model(blueprint) for _ in range(streams - 1)]
        self._runners = [self._runner, *(replace(self._runner, flat=each) for each in models)]

    def _each(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        if method != "train":
            return super()._each(method, calls)
        results: list[list[ClientResult]] = [[] for _ in calls]
        queued: deque[tuple[int, Callable[[], ClientResult]]] = deque()
        free = deque(self._runners)
        for place, (round_number, lr, clients, rows) in enumerate(calls):
            for client, row in zip(clients, rows, strict=True):
                if len(queued) == len(free):  # the next runner is that of the oldest client
                    earlier, end = queued.popleft()
                    results[earlier].append(end())
                queued.append((place, free[0].begin(round_number, lr, client, row)))
                free.rotate(-1)
        for place, end in queued:
            results[place].append(end())
        peak = machine.peak_mib()
        return [[replace(result, peak_mib=peak) for result in chunk] for chunk in results]


class Workers(Executor):
    """A pool of processes that share the arrays and the board through mapped files.

    The next free worker takes the next clients, largest first. Which worker trains a client has no
    influence on its result. Several devices have a process each.
    """

    def __init__(
        self, blueprint: Blueprint, arrays: dict[str, Tensor], layout: TensorShapes, processes: int
    ) -> None:
        self._config, self._arrays = blueprint.config, arrays
        self._blueprint, self._layout = blueprint, layout
        self.processes, self._memory = processes, [0.0] * processes
        threads = self._config.threads
        self._pool = Pool("specgrad_fl.executor", processes, threads, forkable(threads))

    def start(self) -> None:
        layout = layout_of(self._arrays) | self._layout
        folder = _scratch(layout)
        claim = _claimed(folder)
        try:
            shared = mapped(layout, folder)
            for name, tensor in self._arrays.items():
                shared[name].copy_(tensor)
            self.board = SharedVectors(shared)
            self._pool.start()
            order = {"folder": str(folder), "layout": layout, "path": sys.path}
            devices = cycle(self._config.devices)
            self._pool.tell_each(
                {"blueprint": asdict(_on(self._blueprint, device)), **order}
                for _, device in zip(range(self.processes), devices, strict=False)
            )
        except BaseException:
            self.close()
            raise
        finally:
            # mapped memory outlives its name, and a killed run leaves nothing behind
            shutil.rmtree(folder, ignore_errors=True)
            claim.close()

    def _load_scored(self) -> None:
        self._pool.tell_each([{"load_scored": []}] * self.processes)

    def _pieces(self, part: str, count: int) -> list[tuple[str, int, int]]:
        size = self._config.samples_scored_at_once
        return [(part, start, min(start + size, count)) for start in range(0, count, size)]

    def _each(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        answers: dict[int, Any] = {}

        def heard(index: int, number: int, reply: Message) -> None:
            answers[index] = reply["value"]
            if method == "train":
                answers[index] = [ClientResult(*row) for row in reply["value"]]
                self._memory[number] = answers[index][-1].peak_mib

        self._pool.spread([{method: arguments} for arguments in calls], heard)
        return [answers[index] for index in range(len(calls))]

    def memory(self) -> list[float]:
        return list(self._memory)

    def close(self) -> None:
        self._pool.close()


def _largest_first(sizes: Sequence[int]) -> list[int]:
    return sorted(range(len(sizes)), key=lambda place: -sizes[place])


def _stacks(sizes: Sequence[int], count: int) -> Iterator[list[int]]:
    """Places of ``sizes`` in stacks of ``count``, like sizes together; whatever the processes."""
    order = _largest_first(sizes)
    return (order[start : start + count] for start in range(0, len(order), count))


def _chunks(sizes: Sequence[int], count: int) -> Iterator[list[int]]:
    """Places of ``sizes`` in about ``count`` chunks of like sums, the largest first.

    >>> list(_chunks([1, 8, 1, 2], 2))
    [[1], [3, 0, 2]]
    """
    most, chunk, held = sum(sizes) / count, list[int](), 0
    for place in _largest_first(sizes):
        if chunk and held + sizes[place] > most:
            yield chunk
            chunk, held = [], 0
        chunk.append(place)
        held += sizes[place]
    yield chunk


def _scratch(layout: TensorShapes) -> Path:
    """A folder for mapped files, in memory where there is room."""
    sizes = (getattr(torch, dtype).itemsize * math.prod(shape) for dtype, shape in layout.values())
    memory = Path("/dev/shm")
    if memory.is_dir():
        _remove_abandoned(memory)
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2 * sum(sizes)
    return Path(tempfile.mkdtemp(prefix=SCRATCH, dir=memory if roomy else None))


def _claimed(folder: Path) -> IO[bytes]:
    """Lock a folder of mapped files as one that a living process needs."""
    lock = open(folder / "new", "wb")  # noqa: SIM115 (it stays open until the workers have begun)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(folder / "new", folder / CLAIM)  # nobody finds it without the lock
    return lock


def _remove_abandoned(memory: Path) -> None:
    """Remove what runs left in memory that were killed while their workers started."""
    for claim in memory.glob(f"{SCRATCH}*/{CLAIM}"):
        with contextlib.suppress(OSError), open(claim, "rb") as lock:  # taken, or another user's
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(claim.parent, ignore_errors=True)


def forkable(threads: int) -> bool:
    """Return true if workers may be copies of this process, which saves the import of torch.

    Neither threads of Python nor those of OpenMP or of autograd's devices live on in a copy.
    """
    alone = threads == 1 and threading.active_count() == 1 and not torch.cuda.device_count()
    return sys.platform == "linux" and alone


def choose(
    blueprint: Blueprint, arrays: dict[str, Tensor], flat: FlatModel, layout: TensorShapes
) -> Executor:
    """The executor for a configuration, with as many processes as it means on this machine."""
    config = blueprint.config
    processes = machine.processes(config)
    if len(config.devices) > 1:
        return Workers(blueprint, arrays, layout, len(config.devices))
    if flat.weights.device.type == "cuda":
        streams = 1 if config.clients_in_a_stack > 1 else max(1, config.workers)
        return Streams(blueprint, arrays, flat, layout, streams)
    if processes == 1 or config.device != "cpu":
        return Executor(blueprint, arrays, flat, layout)
    return Workers(blueprint, arrays, layout, processes)


def _on(blueprint: Blueprint, device: str) -> Blueprint:
    """The same parts on one of several devices."""
    return replace(blueprint, config=blueprint.config.replace(device=device))


def _runner(order: Message) -> ClientRunner:
    sys.path[:] = order["path"]
    blueprint = building.Blueprint.parse(order["blueprint"])
    torch.set_num_threads(blueprint.config.threads)
    tensors = mapped(order["layout"], Path(order["folder"]))
    return building.build_runner(
        blueprint, tensors, building.build_model(blueprint), SharedVectors(tensors)
    )


class Worker:
    """A runner, made by the first order; every other order is a call of one of its methods."""

    runner: ClientRunner | None = None

    def __call__(self, order: Message, say: Any) -> Any:
        if self.runner is None:
            self.runner = _runner(order)
            return None
        ((method, arguments),) = order.items()
        with attributing_errors(self.runner.config.own_code):
            answer = getattr(self.runner, method)(*arguments)
        return [tuple(vars(each).values()) for each in answer] if method == "train" else answer


if __name__ == "__main__":
    pool.serve(int(sys.argv[1]), Worker())
