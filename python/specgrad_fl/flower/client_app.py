"""The ClientApp that SuperNodes run: say which clients are here, and train them."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from specgrad_fl.errors import RunError
from specgrad_fl.flower import wire
from specgrad_fl.flower.place import NodeConfig, Place, allowed_names, fingerprint
from specgrad_fl.own_code import allowing

if TYPE_CHECKING:
    from specgrad_fl.flower.trainer import Trainer

Answer = tuple[dict[str, Any], wire.Arrays]
app = ClientApp()


def _answer(work: Callable[..., Answer], message: Message, context: Context) -> Message:
    """The reply to an order; what this node or its operator refuses is told in a sentence."""
    node = context.node_config
    about = {"protocol": wire.PROTOCOL, "specgrad": metadata.version("specgrad")}
    try:
        order, arrays = wire.unpack(message.content)
        with allowing(allowed_names(node)):
            facts, results = work(order, arrays, node)
    except RunError as error:
        facts, results = {"refusal": str(error)}, {}
    return Message(wire.pack(about | facts, results), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Which clients are here."""
    return _answer(_introduce, message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that the server asks for."""
    return _answer(_work, message, context)


def _introduce(order: dict[str, Any], arrays: wire.Arrays, node: NodeConfig) -> Answer:
    """Which clients this node has, and what a server may know of their data."""
    place = Place.of(node, wire.settings(order))
    clients = {}
    for client in place.clients():
        found = place.samples(client)
        clients[str(client)] = {
            "size": len(found["train_y"]),
            "fingerprint": fingerprint(found["train_x"], found["train_y"]),
            "histogram": np.bincount(found["train_y"]).tolist(),
        }
    return {"clients": clients}, {}


# what can be used again, as long as this process lives: in a simulation, for several nodes
_trainers: dict[str, Trainer] = {}


def _work(order: dict[str, Any], arrays: wire.Arrays, node: NodeConfig) -> Answer:
    """Train the clients of an order."""
    from specgrad_fl.flower.trainer import Trainer  # with torch, which introducing does without

    wire.check_order(order)
    place = Place.of(node, wire.settings(order))
    states, device = place.states(node), str(node.get("device", ""))
    names = [order["blueprint"], order["sizes"], order["run"], place.key, str(states), device]
    purpose = json.dumps([*names, allowed_names(node)])
    if purpose not in _trainers:
        _trainers.clear()
        _trainers[purpose] = Trainer(order, place, states, device)
    return _trainers[purpose].work(order, arrays, place.clients())
