"""The flags of ``specgrad-fl tune``, without anything that is slow to import."""

from __future__ import annotations

import argparse
from pathlib import Path

from specgrad_study.lists import whole_numbers

DESCRIPTION = """Search a method's learning rate and own parameters without the filter, as the
paper does: a grid, widened until the best setting has no better neighbour. Samples that every
client holds out decide, a tenth unless --validation says otherwise. The result is a
configuration file for `train`, `compare` and `reproduce --tuned`, with or without the filter.

Only what is missing is run. Interrupted? The same command goes on where it stopped.

example:
  specgrad-fl tune --method fedprox --dataset cifar10 --rounds 50 --jobs 2 --out tuned/fedprox"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags besides the settings."""
    parser.add_argument("--out", type=Path, help="folder of the result [tuned/METHOD]")
    parser.add_argument("--runs", type=Path, help="folder of the runs [OUT/runs]")
    parser.add_argument(
        "--grid", action="append", default=[], metavar="NAME=V,V",
        help="values of lr or of an option of the method, in place of the usual ones",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", type=whole_numbers, default=[0], metavar="0,1",
        help="seeds whose mean counts [0]",
    )  # fmt: skip
    parser.add_argument("--limit", type=int, default=6, help="values added on each side [6]")
    parser.add_argument("--measure", default="last10", help="last10, final or best [last10]")
    parser.add_argument(
        "--decide", default="validation", metavar="{validation,test}",
        help="what accuracy decides: on samples that clients hold out, or on the test set "
        "[validation]",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side [1]")
