"""A federation in one process: a grid whose nodes are calls of the ClientApp."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from specgrad_fl import prepare, progress, training
from specgrad_fl.flower import client_app
from specgrad_fl.flower.executor import FlowerExecutor
from specgrad_fl.flower.place import write_shards
from specgrad_fl.flower.server_app import identity
from specgrad_fl.runs import RunDirectory


def copied(content: RecordDict) -> RecordDict:
    """Through bytes and back, as on a network."""
    return recorddict_from_proto(recorddict_to_proto(content))


class MemoryGrid(Grid):
    """Answers at once; ``tamper(node, reply)`` may change, replace or swallow an answer."""

    def __init__(self, nodes: dict[int, dict[str, Any]]) -> None:
        self.nodes = nodes
        self.tamper: Callable[[int, Message], Message | None] = lambda node, reply: reply
        self.log: list[tuple[int, str]] = []
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], **options: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            node, name = message.metadata.dst_node_id, f"message {len(self.log)}"
            self.log.append((node, message.metadata.message_type))
            message.metadata.__dict__["_message_id"] = name
            message.content = copied(message.content)
            reply = self.tamper(node, self._answer(node, message))
            if reply is not None:
                self._replies[name] = reply
            names.append(name)
        return names

    def _answer(self, node: int, message: Message) -> Message:
        context = Context(1, node, dict(self.nodes[node]), RecordDict(), {})
        try:
            reply = client_app.app(message, context)
        except Exception as error:
            return Message(Error(code=0, reason=str(error)), reply_to=message)
        reply.content = copied(reply.content)
        return reply

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        # the last to be asked answers first: the order of arrival must not matter
        asked = sorted(set(message_ids) & set(self._replies), reverse=True)
        return [self._replies.pop(name) for name in asked]


class LocalFederation:
    """A run directory with nodes' folders and a grid over them."""

    def __init__(self, path: Path, config: Any, nodes: int) -> None:
        self.run = RunDirectory(path)
        dataset = training.begin(self.run, config)

        self.nodes = {100 + k: path / f"node-{k}" for k in range(nodes)}
        folders = [folder / "data" for folder in self.nodes.values()]
        write_shards(config, dataset, prepare.divide(config, dataset).clients, folders)
        self.grid = MemoryGrid(
            {
                node: {"data": str(folder / "data"), "state": str(folder / "state")}
                for node, folder in self.nodes.items()
            }
        )

    def play(self, watch: Any = progress.silent) -> RunDirectory:
        begin = functools.partial(FlowerExecutor, self.grid, identity(self.run))
        return training.carry_on(self.run, self.run.config(), watch, begin)


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    """Messages carry the run and node that Flower's processes are told of."""
    if find_spec("flwr.supercore.task_identity") is None:  # Flower before 1.41
        return
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def federation(tmp_path: Path, small) -> Callable[..., LocalFederation]:
    """Makes a federation of three nodes for settings."""

    def make(name: str = "flower", nodes: int = 3, **settings: Any) -> LocalFederation:
        config = small(engine="flower", join_timeout=1, client_timeout=1, **settings)
        return LocalFederation(tmp_path / name, config, nodes)

    return make
