"""Two checkouts in turn: ``python -m benchmarks.compare OTHER`` prints a table of their times.

Each runs in a process of its own, because two builds of one operator cannot share one. They are
asked by turns for a few calls, so that a busy moment of the machine meets both. OTHER must be
built (``python setup.py build_ext --inplace``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

TURNS = 15
SECONDS = 0.02


class Checkout:
    """A process that times calls of one checkout."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
        self._process = subprocess.Popen(
            command,
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root.resolve())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def times(self, workload: str, method: str, threads: int) -> list[float]:
        """Seconds of a few calls, each on fresh gradients."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([workload, method, threads]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("a checkout ended early; its message is above")
        return list(json.loads(answer))

    def end(self) -> None:
        """Let it go."""
        self._process.communicate()


def serve() -> None:
    """Answer the questions of ``Checkout``."""
    import torch

    from benchmarks.timing import quiet_process, timed
    from benchmarks.workloads import WORKLOADS
    from specgrad_kernels import filter_grads_

    lists = {}
    for line in sys.stdin:
        name, method, threads = json.loads(line)
        if name not in lists:
            fresh = WORKLOADS[name].gradients()
            lists = {name: (fresh, [grad.clone() for grad in fresh])}
        fresh, grads = lists[name]
        call = partial(filter_grads_, grads, method=method, ratio=0.05)
        seconds: list[float] = []
        with quiet_process(threads):
            call()
            while len(seconds) < 3 or sum(seconds) < SECONDS:
                torch._foreach_copy_(grads, fresh)
                seconds.append(timed(call))
        print(json.dumps(seconds), flush=True)


def main() -> None:
    """Print the table."""
    from benchmarks.contenders import METHODS
    from benchmarks.workloads import WORKLOADS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("other", type=Path, help="the checkout to compare this one with")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    options = parser.parse_args()
    checkouts = [Checkout(options.other), Checkout(Path(__file__).parent.parent)]
    print("| list | method | threads | before, us | after, us | after / before |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, workload in WORKLOADS.items():
        for method in METHODS:
            for threads in options.threads:
                samples: list[list[float]] = [[], []]
                for turn in range(TURNS):
                    for index in (0, 1) if turn % 2 else (1, 0):
                        samples[index] += checkouts[index].times(name, method, threads)
                before, after = (statistics.median(times) * 1e6 for times in samples)
                print(
                    f"| {workload.title} | {method} | {threads} | {before:.0f} | {after:.0f} "
                    f"| {after / before:.2f} |"
                )
    for checkout in checkouts:
        checkout.end()


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main()
