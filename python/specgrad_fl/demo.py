"""``python -m specgrad_fl.demo``: FedAvg with and without the filter on digits, in minutes.

Twenty clients with very different digits (Dirichlet 0.1), ten of them active in a round, three
seeds that are the same for both. It shows what was measured, whatever that is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from specgrad_fl import cli

SETTINGS = (
    "--methods=fedavg",
    "--filters=none,fft",
    "--seeds=0,1,2",
    "--clients=20",
    "--active=10",
    "--alpha=0.1",
    "--rounds=30",
    "--eval-every=1",
    "--target=0.9",
)


def main() -> int:
    """Run the comparison; only what is missing is run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of the runs")
    arguments = parser.parse_args()
    print(f"specgrad-fl compare {' '.join(SETTINGS)} --out={arguments.out}", flush=True)
    return cli.main(["compare", *SETTINGS, f"--out={arguments.out}"])


if __name__ == "__main__":
    raise SystemExit(main())
