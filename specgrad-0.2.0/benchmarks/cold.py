"""Time `fft` with warm and with cold caches: ``python -m benchmarks.cold``

Warm: each call repeats the last one on the same memory. Cold: before each call a buffer larger than
the caches is written, as other work in a training step would.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks import machine
from benchmarks.contenders import CONTENDERS, OURS
from benchmarks.report import seconds
from benchmarks.timing import Call, Effort, Summary, quiet_process, time_in_turn
from benchmarks.workloads import WORKLOADS

RATIO = 0.05
LOOP = "fft_loop"


def evict(mebibytes: int) -> Call:
    """Write a buffer of this size."""
    buffer = torch.zeros(mebibytes * 2**20 // 4)

    def call() -> None:
        buffer.add_(1)

    return call


def measure(
    network: str, threads: int, mebibytes: int, effort: Effort
) -> dict[str, dict[str, Summary]]:
    """Times of the op and of the loop of torch.fft, with warm and with cold caches."""
    grads = WORKLOADS[network].gradients()
    calls = {name: CONTENDERS[name].bind(grads, "fft", RATIO) for name in (LOOP, OURS)}
    found = {}
    with quiet_process(threads):
        # a warm call is the second of two in a row, so that contenders in turn stay warm
        found["warm"] = {
            name: time_in_turn({name: call}, effort, call)[name] for name, call in calls.items()
        }
        found["cold"] = time_in_turn(calls, effort, evict(mebibytes))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold", description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["resnet20"], choices=sorted(WORKLOADS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each contender")
    parser.add_argument("--evict", type=int, default=128, metavar="MIB", help="default: 128")
    given = parser.parse_args(arguments)
    print(f"{machine.cpu_model()}, torch {torch.__version__}, load {machine.load():.1f}")
    print("| network | caches | threads | torch.fft loop | specgrad | faster by |")
    print("|---|---|---|---|---|---|")
    for network in given.networks:
        for threads in given.threads:
            found = measure(network, threads, given.evict, Effort(given.seconds))
            for caches, times in found.items():
                loop, ours = times[LOOP].median, times[OURS].median
                print(
                    f"| {WORKLOADS[network].title} | {caches} | {threads} | {seconds(loop)} "
                    f"| {seconds(ours)} | {loop / ours:.0f}x |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
