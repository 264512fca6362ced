"""The flags of ``specgrad-fl diagnose``, apart from the command itself, which needs torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from specgrad_study.lists import numbers, whole_numbers, words

HELP = """Show where in the spectrum clients disagree, and which layers to filter.

Clients that pull the model in different directions make it drift. This command takes the
gradients of the clients active at chosen rounds of a run, and shows for each layer how much of
their disagreement lies in low frequencies, what a filter would remove of it, and what that would
cost of the direction they agree about (rho). It recommends a ratio for each layer, in a file that
`train --filter-ratios` takes.

examples:
  specgrad-fl diagnose runs/NAME                      at the stored weights
  specgrad-fl diagnose runs/NAME --rounds 0,10,20     along the run, played again in a copy
  specgrad-fl diagnose runs/NAME --rounds 20 --local  local models too: cosines, CKA
  specgrad-fl diagnose --gradients client*.safetensors --weights 500,300,200
  specgrad-fl train --filter fft --filter-ratios runs/NAME/diagnosis/ratios.toml

written to --out: diagnosis.json, ratios.toml, bands.png, layers.png, filter.png, and with --local
similarity-ROUND.png. A round is a number of rounds done; 0 is the model before training."""

TRIED = "fft,lap,gaussian,random,fft_high"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``diagnose``."""
    parser.add_argument("run", type=Path, nargs="?", help="run directory")
    parser.add_argument(
        "--gradients", type=Path, nargs="+", metavar="FILE",
        help="instead of a run: safetensors files, one for each client, tensor name to gradient",
    )  # fmt: skip
    parser.add_argument(
        "--weights", type=numbers, default=[], metavar="N,N",
        help="with --gradients: weight of each client, such as its samples",
    )  # fmt: skip
    parser.add_argument(
        "--select", default="", metavar="REGEX",
        help="with --gradients: tensors to filter, by default convolutions",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=whole_numbers, metavar="0,10",
        help="rounds to measure, by default the last one stored",
    )  # fmt: skip
    parser.add_argument(
        "--local", action="store_true",
        help="train the active clients and compare their models: cosines, CKA",
    )  # fmt: skip
    parser.add_argument(
        "--source", default="full", metavar="{full,batch,update}",
        help="gradients that the table is made of: a full pass over each client's samples, one "
        "mini-batch, or the local update over its learning rates; what was measured of the others "
        "is told too [full]",
    )  # fmt: skip
    parser.add_argument("--ratio", type=float, help="ratio of the filter, by default the run's")
    parser.add_argument("--order", help="flattening order, such as 0231, by default the run's")
    parser.add_argument(
        "--filters", type=words, default=words(TRIED), metavar="A,B",
        help=f"filters to try on the gradients, or `none` [{TRIED}]",
    )  # fmt: skip
    parser.add_argument(
        "--orders", type=words, default=[], metavar="0231,random",
        help="flattening orders to try with the fft filter",
    )  # fmt: skip
    parser.add_argument(
        "--share", type=float, default=0.5,
        help="disagreement that a recommended ratio must remove [0.5]",
    )  # fmt: skip
    parser.add_argument(
        "--rho-limit", type=float, default=0.5,
        help="most of the mean gradient that all ratios may remove [0.5]",
    )  # fmt: skip
    parser.add_argument(
        "--noise-batches", type=int, default=8,
        help="mini-batches for each client's gradient noise; 0 for none [8]",
    )  # fmt: skip
    parser.add_argument(
        "--smoothness", type=float, metavar="L",
        help="smoothness of the loss, to turn the theorem's bound into a number",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="folder to write to [RUN/diagnosis, diagnosis]")
    parser.add_argument("--data-root", help="folder of the data sets, if it has moved")
    parser.add_argument("--quiet", action="store_true", help="no progress")
