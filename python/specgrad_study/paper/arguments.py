"""The flags of ``specgrad-fl reproduce``, without anything that is slow to import."""

from __future__ import annotations

import argparse
from pathlib import Path

from specgrad_study.lists import whole_numbers

DESCRIPTION = """Run the paper's experiments and set its numbers beside yours.

Only what is missing is run. Interrupted? The same command goes on where it stopped.

experiments:
  table1, table2, near-iid, feature-shift, femnist, settings, curves,
  supplement                                                            methods compared
  strategies, layers, orders, ratio, centralised                        ablations of the filter
  spectral-bias, cka                                                    how clients drift apart
  time                                                                  seconds and memory
  mechanism                                                             what does the work (ours)

examples:
  specgrad-fl reproduce strategies --preset cpu --dry-run      how long would it take
  specgrad-fl reproduce strategies orders --preset cpu --jobs 2
  specgrad-fl reproduce all --preset paper --shard 2/4         one of four machines
  specgrad-fl reproduce all --preset cpu --report-only         from the runs there are"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="experiments, or all")
    parser.add_argument("--preset", default="cpu", help="paper, cpu or smoke [cpu]")
    parser.add_argument("--runs", type=Path, help="folder of the runs [runs/PRESET]")
    parser.add_argument("--out", type=Path, help="folder of the report [RUNS/report]")
    parser.add_argument(
        "--seeds", type=whole_numbers, metavar="0,1", help="seeds of every cell [by preset]"
    )
    parser.add_argument("--measure", default="last10", help="last10, final or best [last10]")
    parser.add_argument(
        "--tuned", type=Path, action="append", default=[], metavar="FILE",
        help="result of `tune`, reused with and without the filter; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--with", dest="with_results", type=Path, action="append", default=[],
        metavar="RESULTS.JSON",
        help="an earlier report's results.json, for runs that the folder lacks; may be repeated",
    )  # fmt: skip
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="play the I-th of N parts")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side [1]")
    parser.add_argument("--workers", type=int, default=0, help="client processes of each run")
    parser.add_argument("--device", default="", help="torch device [by preset]")
    parser.add_argument("--data-root", default="", help="folder of the data sets")
    parser.add_argument("--dry-run", action="store_true", help="only estimate the time")
    parser.add_argument("--report-only", action="store_true", help="run nothing")
    parser.add_argument("--quiet", action="store_true", help="no progress")
