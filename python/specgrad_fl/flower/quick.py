"""``flower-supernode`` that looks for messages more often than every three seconds.

Flower has no setting for that pause, and in rounds of a second it is most of the time. The pauses
of its message loop, and of nothing else, are shortened here in one proportion.
"""

from __future__ import annotations

import importlib
import os
import sys
import time

STOCK_SECONDS = 3.0
VARIABLE = "SPECGRAD_NODE_POLL"


class Hasty:
    """The module ``time`` with shorter pauses."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def sleep(self, seconds: float) -> None:
        """A share of the pause that was asked for."""
        time.sleep(seconds * self._factor)


def main() -> None:
    """Run the SuperNode with the command line of this process."""
    from flwr.supernode.cli import flower_supernode

    poll = min(float(os.environ.get(VARIABLE, STOCK_SECONDS)), STOCK_SECONDS)
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    setattr(loop, "time", Hasty(poll / STOCK_SECONDS))  # noqa: B010 - not its own to declare
    sys.argv[0] = "flower-supernode"
    flower_supernode()


if __name__ == "__main__":
    main()
