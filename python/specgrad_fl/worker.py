"""The process behind ``--workers``: trains clients and scores samples, as it is ordered.

Started by :class:`specgrad_fl.executor.Workers` with the number of an inherited socket.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from specgrad_fl import assembly, children
from specgrad_fl.board import Board, mapped
from specgrad_fl.children import Message
from specgrad_fl.client import ClientRunner


def _runner(order: Message) -> ClientRunner:
    sys.path[:] = order["path"]
    blueprint = assembly.Blueprint.parse(order["blueprint"])
    torch.set_num_threads(blueprint.config.threads)
    folder = Path(order["folder"])
    arrays = mapped(order["data"], folder)
    board = Board(mapped(order["board"], folder))
    return assembly.build_runner(blueprint, arrays, assembly.build_model(blueprint), board)


class Worker:
    """A runner, made by the first order."""

    runner: ClientRunner | None = None

    def __call__(self, order: Message, say: Any) -> Any:
        if self.runner is None:
            self.runner = _runner(order)
            return None
        if "train" in order:
            return self.runner.train(*order["train"]).as_dict()
        if "load" in order:
            return self.runner.load_scored()
        return self.runner.score(*order["score"])

    def own_code(self) -> dict[str, str]:
        """What may be to blame besides ourselves."""
        return self.runner.config.own_code if self.runner else {}


if __name__ == "__main__":
    worker = Worker()
    children.serve(int(sys.argv[1]), worker, worker.own_code)
