"""Run the CPU benchmark: ``python -m benchmarks.run`` (or ``make bench``).

Contenders are checked against the float64 reference and then timed in turn in one process.
What was measured is written after every case, so Ctrl-C only loses the one that runs.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, report
from benchmarks.cases import THREADS, Case, Row, WrongResultError, all_cases
from benchmarks.progress import Progress

OUTPUT = Path("runs/bench/cpu.json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description="Time filter_grads_ on the CPU against plain PyTorch, and check its targets.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="short lists, few calls: does it run at all?"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="WORD",
        default=[],
        help="cases that carry all these words: time, step, memory, overhead, accuracy; "
        "fft, lap, gaussian; resnet20, resnet18, wrn56_2, densenet121, vit, long",
    )
    parser.add_argument(
        "--threads", nargs="+", type=int, default=THREADS, metavar="N", help="default: 1 2"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=OUTPUT,
        metavar="JSON",
        help=f"where results go, the Markdown page beside it (default: {OUTPUT})",
    )
    return parser


def _chosen(cases: Sequence[Case], words: Sequence[str]) -> list[Case]:
    known = frozenset().union(*(case.words for case in cases))
    unknown = sorted(set(words) - known)
    if unknown:
        raise ValueError(f"--only {unknown[0]} names no case; known: {', '.join(sorted(known))}")
    chosen = [case for case in cases if case.words.issuperset(words)]
    if not chosen:
        raise ValueError(f"--only {' '.join(words)}: no case carries all these words")
    return chosen


def measure(cases: Sequence[Case], keep: Callable[[list[Row], bool], None]) -> bool:
    """Run all cases and ``keep`` the rows after each; whether Ctrl-C did not end it early."""
    rows: list[Row] = []
    progress = Progress([case.seconds for case in cases])
    try:
        for done, case in enumerate(cases, start=1):
            progress.begin(case.title)
            rows += case.run()
            keep(rows, done == len(cases))
    except KeyboardInterrupt:
        return False
    finally:
        progress.end()
    return True


def _warn_if_busy() -> None:
    load, cores = machine.load(), machine.cores()
    if load > 0.5 * cores:
        print(
            f"load is {load:.1f} on {cores} cores: figures from a busy machine prove little",
            file=sys.stderr,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 for a wrong result, 2 for wrong usage, 130 after Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if min(options.threads) < 1:
        parser.error(f"--threads must be positive; got {min(options.threads)}")
    if options.output.suffix != ".json":
        parser.error(f"--output must name a .json file; got {options.output}")
    try:
        cases = _chosen(list(all_cases(options.threads, options.quick)), options.only)
    except ValueError as error:
        parser.error(str(error))
    _warn_if_busy()
    words = sys.argv[1:] if arguments is None else arguments
    results: dict[str, Any] = {
        "schema": report.SCHEMA,
        "command": shlex.join(["python", "-m", "benchmarks.run", *words]),
        **machine.describe(),
    }

    def keep(rows: list[Row], complete: bool) -> None:
        measured = {"load_at_end": round(machine.load(), 2), "complete": complete, "rows": rows}
        report.save(results | measured, options.output)

    keep([], False)
    try:
        complete = measure(cases, keep)
    except WrongResultError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(report.targets_table(report.load_results(options.output)["rows"]))
    print(f"\nwritten: {options.output}, {options.output.with_suffix('.md')}")
    return 0 if complete else 130


if __name__ == "__main__":
    sys.exit(main())
