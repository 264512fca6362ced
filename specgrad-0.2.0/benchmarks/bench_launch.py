"""Host time of one call of the Triton backend: ``python -m benchmarks.bench_launch``.

Everything but the GPU: checks, addresses, Triton's own launcher, and the driver's entry points,
which are a stand-in that returns at once. A GPU's driver adds its own time for each launch, a few
microseconds, and none of it is in these figures. It needs a C compiler, and no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.machine import cpu_model

REPEATS = 15
CALLS = 200


def microseconds(call: Callable[[], None]) -> float:
    """Shortest mean over some calls, in the time of this thread."""
    best = float("inf")
    for _ in range(REPEATS):
        begun = time.thread_time()
        for _ in range(CALLS):
            call()
        best = min(best, (time.thread_time() - begun) / CALLS)
    return 1e6 * best


def self_check_milliseconds(call: Any) -> float:
    """Host time of a prepared call's self-check; nothing was executed, so any result passes."""
    from specgrad_kernels.backends.triton import self_check

    with mock.patch.multiple(self_check, TOLERANCE=float("inf"), _passed=lambda _: False):
        begun = time.thread_time()
        call.check()
        return 1e3 * (time.thread_time() - begun)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; a sentence and exit code 2 where the stand-in cannot be built."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "triton"))
    from triton_tools import driver
    from triton_tools.lists import MODELS

    from specgrad_kernels.backends.triton import launch
    from specgrad_kernels.spec import FilterSpec

    parser = argparse.ArgumentParser(description="Host time of a call, without a GPU.")
    parser.add_argument(
        "--models", nargs="+", choices=sorted(MODELS), default=["resnet20", "densenet121"]
    )
    parser.add_argument("--json", action="store_true", help="print JSON with the machine's name")
    options = parser.parse_args(arguments)
    if driver.why_not():
        print(driver.why_not(), file=sys.stderr)
        return 2
    spec = FilterSpec()
    with tempfile.TemporaryDirectory() as folder:
        device = driver.Device(Path(folder))
        device.listen(False)
        rows = []
        for model in options.models:
            lists = [[torch.empty(length) for length in MODELS[model]] for _ in range(2)]
            turn = [0]

            def same(grads: list[torch.Tensor] = lists[0]) -> None:
                launch.run(grads, spec)

            def moved(lists: list[list[torch.Tensor]] = lists, turn: list[int] = turn) -> None:
                turn[0] ^= 1
                launch.run(lists[turn[0]], spec)

            row = {"model": model, "tensors": len(lists[0])}
            call = launch.calls.find(lists[0], spec)
            row |= {"launches": call.launches, "check": self_check_milliseconds(call)}
            rows.append(row | {"same": microseconds(same), "moved": microseconds(moved)})
    if options.json:
        print(json.dumps({"machine": cpu_model(), "rows": rows}))
        return 0
    print("host time of one call in microseconds, and of the self-check of the first one in")
    print(f"milliseconds, on a stand-in driver, {cpu_model()}")
    print(f"{'model':12} {'tensors':>7} {'launches':>8} {'same':>7} {'moved':>7} {'check':>7}")
    for row in rows:
        print(
            "{model:12} {tensors:7} {launches:8} {same:7.1f} {moved:7.1f} {check:7.1f}".format(
                **row
            )
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
