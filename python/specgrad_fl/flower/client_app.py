"""The ClientApp that SuperNodes run."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from specgrad_fl.flower import wire
from specgrad_fl.flower.node import Node, introduce

app = ClientApp()
_node = Node()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Which clients are here."""
    return Message(wire.pack(introduce(context.node_config)), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that the server asks for."""
    order, arrays = wire.unpack(message.content)
    return Message(wire.pack(*_node.train(order, arrays, context.node_config)), reply_to=message)
