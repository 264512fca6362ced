"""The process behind ``--workers``: reads orders, trains clients, answers with reports.

Started by :class:`specgrad_fl.executor.Workers` with the number of an inherited socket.
"""

from __future__ import annotations

import json
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from specgrad_fl import assembly
from specgrad_fl.board import Board, mapped
from specgrad_fl.client import ClientRunner
from specgrad_fl.errors import RunError


def _runner(message: dict[str, Any]) -> ClientRunner:
    sys.path[:] = message["path"]
    blueprint = assembly.Blueprint.parse(message["blueprint"])
    torch.set_num_threads(blueprint.config.threads)
    folder = Path(message["folder"])
    arrays = mapped(message["data"], folder)
    board = Board(mapped(message["board"], folder))
    return assembly.build_runner(blueprint, arrays, assembly.build_model(blueprint), board)


def _answer(runner: ClientRunner, message: dict[str, Any]) -> Any:
    if "train" in message:
        return runner.train(*message["train"]).as_dict()
    if "load" in message:
        return runner.load_scored()
    return runner.score(*message["score"])


def serve(link: Connection) -> None:
    """Answer until the other side hangs up, which it also does when it is killed."""
    runner: ClientRunner | None = None
    while True:
        try:
            message = json.loads(link.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            if runner is None:
                runner = _runner(message)
                value = None
            else:
                value = _answer(runner, message)
            reply = {"value": value}
        except RunError as error:
            reply = {"error": str(error)}
        except Exception:
            reply = {"crash": traceback.format_exc()}
        try:
            link.send_bytes(json.dumps(reply).encode())
        except OSError:
            return


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
