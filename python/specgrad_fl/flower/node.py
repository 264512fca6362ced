"""The work of a node: say which clients it has, and train them.

The training function is the engine's own :class:`~specgrad_fl.client.ClientRunner`, so that the
filter acts on every local gradient and every method is the same code as in one process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specgrad_fl.errors import RunError
from specgrad_fl.flower import shards, wire
from specgrad_fl.own_code import allowing

if TYPE_CHECKING:
    from specgrad_fl.flower.trainer import Trainer

NodeConfig = Mapping[str, Any]


def version() -> str:
    """Of this package; server and nodes must agree on it."""
    return metadata.version("specgrad")


def data_folder(node: NodeConfig) -> Path:
    """Where the clients' files are."""
    folder = node.get("data")
    if not isinstance(folder, str):
        raise RunError(
            "this node has no data folder; start the SuperNode with --node-config "
            '\'data="FOLDER" state="FOLDER"\''
        )
    return Path(folder)


def state_folder(node: NodeConfig) -> Path:
    """Where clients keep what they need between rounds."""
    folder = node.get("state")
    return Path(folder) if isinstance(folder, str) else data_folder(node) / "state"


def allowed_names(node: NodeConfig) -> list[str]:
    """``module:name`` of models and methods that this node's operator lets a server ask for."""
    return [name.strip() for name in str(node.get("allow", "")).split(",") if name.strip()]


def introduce(node: NodeConfig) -> dict[str, Any]:
    """Which clients this node has, and what a server may know of their data."""
    folder = data_folder(node)
    clients = {}
    for client in shards.clients_in(folder):
        arrays = shards.read(folder, client, ("train_x", "train_y"))
        clients[str(client)] = {
            "size": len(arrays["train_y"]),
            "fingerprint": shards.fingerprint(arrays["train_x"], arrays["train_y"]),
            "histogram": np.bincount(arrays["train_y"]).tolist(),
        }
    return {"protocol": wire.PROTOCOL, "specgrad": version(), "clients": clients}


class Node:
    """Answers orders; what can be used again is kept as long as the process lives."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._made_for = ""

    def train(
        self, order: dict[str, Any], arrays: wire.Arrays, node: NodeConfig
    ) -> tuple[dict[str, Any], wire.Arrays]:
        """Train the clients of an order; the failure of one is told and leaves the others."""
        from specgrad_fl.flower.trainer import Trainer

        wire.check_order(order)
        purpose = json.dumps([order["blueprint"], order["sizes"], order["run"], dict(node)])
        with allowing(allowed_names(node)):
            if self._trainer is None or self._made_for != purpose:
                self._trainer = Trainer(order, data_folder(node), state_folder(node), node)
                self._made_for = purpose
            return self._trainer.work(order, arrays)
