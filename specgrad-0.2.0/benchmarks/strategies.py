"""Does the cost model choose well? ``python -m benchmarks.strategies``

For lengths and ratios around the boundaries between strategies, every strategy is timed in
turn; cases where the automatic choice is slower than the best by more than the tolerance are
listed. They are what the constants of ``specgrad_kernels/design.py`` are to be tuned from.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

import torch
from specgrad_fl import storage

from benchmarks import machine
from benchmarks.progress import Progress
from benchmarks.report import seconds
from benchmarks.timing import Effort, Summary, quiet_process, time_in_turn
from specgrad_kernels import FilterSpec, filter_grads_
from specgrad_kernels.backends import cpp
from specgrad_kernels.reference import cutoff

STRATEGIES = ("dense", "band", "full")
TOLERANCE = 0.25
# layers of the benchmarked models, lengths with few factors of two, and a prime
LENGTHS = (
    *(128, 432, 864, 1000, 1728, 2304, 4608, 4374, 8192, 9216, 9973, 15625, 18432, 24576),
    *(36864, 49152, 51200, 50000, 73728, 98304, 147456, 262144, 294912, 531441, 1179648),
)
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)


@dataclass(frozen=True)
class Comparison:
    """Times of every strategy that fits one length and ratio.

    >>> times = {"dense": Summary.of([2e-5]), "band": Summary.of([1e-5])}
    >>> Comparison(432, 0.05, 10, "float32", "dense", times).loss("median")
    1.0
    """

    d: int
    ratio: float
    cutoff: int
    dtype: str
    chosen: str
    times: dict[str, Summary]

    def best(self, statistic: str) -> str:
        """The fastest strategy."""
        return min(self.times, key=lambda name: getattr(self.times[name], statistic))

    def loss(self, statistic: str) -> float:
        """Relative loss of the automatic choice against the best time."""
        best = getattr(self.times[self.best(statistic)], statistic)
        return getattr(self.times[self.chosen], statistic) / best - 1


def _family(strategy: str) -> str:
    """``padded`` is what ``full`` becomes for a length with a large prime."""
    return "full" if strategy == "padded" else strategy


def _chosen(d: int, bins: int, dtype: torch.dtype, strategy: str) -> str | None:
    """Design of a layer by a strategy, ``None`` where it does not fit."""
    spec = FilterSpec(ratio=Fraction(bins, d // 2 + 1), strategy=strategy)
    try:
        return _family(cpp.explain(spec, d, 0, dtype)[0].split()[0])
    except ValueError:
        return None


def compare(d: int, ratio: float, dtype: torch.dtype, effort: Effort) -> Comparison:
    """Time all strategies on one layer, on one thread."""
    bins = cutoff(ratio, d)
    chosen = _chosen(d, bins, dtype, "auto")
    assert chosen is not None
    fresh = torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=dtype)
    grad = fresh.clone()
    calls = {
        strategy: partial(filter_grads_, [grad], ratio=ratio, strategy=strategy, backend="cpp")
        for strategy in STRATEGIES
        if _chosen(d, bins, dtype, strategy)
    }
    with quiet_process(1):
        times = time_in_turn(calls, effort, partial(grad.copy_, fresh))
    name = str(dtype).removeprefix("torch.")
    return Comparison(d, ratio, bins, name, chosen, times)


def grid(lengths: Sequence[int], ratios: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Lengths and ratios at which there is something to suppress."""
    for d in lengths:
        for ratio in ratios:
            if cutoff(ratio, d):
                yield d, ratio


def badly_chosen(
    comparisons: Sequence[Comparison], tolerance: float, statistic: str
) -> list[Comparison]:
    """Where ``auto`` loses more than the tolerance, the worst first."""
    bad = [c for c in comparisons if c.loss(statistic) > tolerance]
    return sorted(bad, key=lambda c: -c.loss(statistic))


def render(comparisons: Sequence[Comparison], tolerance: float, statistic: str) -> str:
    """A Markdown table of the badly chosen cases, with a summary."""
    bad = badly_chosen(comparisons, tolerance, statistic)
    lines = [
        "| d | ratio | cutoff | dtype | auto takes | best | auto slower by | "
        + " | ".join(STRATEGIES)
        + " |",
        "| " + " | ".join(["---"] * (7 + len(STRATEGIES))) + " |",
    ]
    for c in bad:
        times = [
            seconds(getattr(c.times[name], statistic)) if name in c.times else "-"
            for name in STRATEGIES
        ]
        cells = [str(c.d), str(c.ratio), str(c.cutoff), c.dtype, c.chosen, c.best(statistic)]
        lines.append("| " + " | ".join([*cells, f"{c.loss(statistic):.0%}", *times]) + " |")
    lines.append("")
    lines.append(
        f"auto is within {tolerance:.0%} of the best ({statistic} times) in "
        f"{len(comparisons) - len(bad)} of {len(comparisons)} cases"
    )
    return "\n".join(lines)


def _save(comparisons: Sequence[Comparison], path: Path) -> None:
    rows = [
        {**vars(c), "times": {name: vars(summary) for name, summary in c.times.items()}}
        for c in comparisons
    ]
    storage.make_folder(path.parent)
    storage.write_json(path, {**machine.describe(), "rows": rows})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.strategies",
        description="Time dense, band and full and list where the cost model chooses badly.",
    )
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="D")
    parser.add_argument("--ratios", nargs="+", type=float, default=RATIOS, metavar="R")
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "float64"), default=["float32"])
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="default: 0.25")
    parser.add_argument(
        "--statistic",
        choices=("median", "minimum"),
        default="minimum",
        help="of the calls' times; the minimum is steadier on a busy machine (default)",
    )
    parser.add_argument("--seconds", type=float, default=0.1, help="a strategy; default: 0.1")
    parser.add_argument("--output", type=Path, metavar="JSON", help="also write all times there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 130 after Ctrl-C, with what was measured."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if min(options.lengths) < 1:
        parser.error(f"--lengths must be positive; got {min(options.lengths)}")
    if not all(0 <= ratio < 1 for ratio in options.ratios):
        parser.error(f"--ratios must lie in [0, 1); got {options.ratios}")
    if not options.seconds > 0:
        parser.error(f"--seconds must be positive; got {options.seconds}")
    if cpp.why_not():
        parser.error(f"the native backend is needed: {cpp.why_not()}")
    effort = Effort(options.seconds, fewest=3, most=500)
    cases = [
        (d, ratio, getattr(torch, dtype))
        for dtype in options.dtypes
        for d, ratio in grid(options.lengths, options.ratios)
    ]
    comparisons: list[Comparison] = []
    progress = Progress([3 * options.seconds * (1 + d / 1e5) for d, _, _ in cases])
    complete = True
    try:
        for d, ratio, dtype in cases:
            progress.begin(f"{d} samples, ratio {ratio}")
            comparisons.append(compare(d, ratio, dtype, effort))
    except KeyboardInterrupt:
        complete = False
    progress.end()
    print(render(comparisons, options.tolerance, options.statistic))
    if options.output:
        _save(comparisons, options.output)
    return 0 if complete else 130


if __name__ == "__main__":
    sys.exit(main())
