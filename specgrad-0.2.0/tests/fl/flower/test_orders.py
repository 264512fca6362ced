"""Orders of a server that is not to be trusted: a node runs bundled code alone."""

from __future__ import annotations

import copy
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from specgrad_fl.flower import client_app, wire

MODULE = """
from pathlib import Path
from torch import nn
Path("imported").touch()


def small(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""


# called with every event that the interpreter audits, and its first argument
watching: list[Any] = []
sys.addaudithook(lambda event, found: [w(event, found[0]) for w in watching if found] and None)

Order = tuple[dict[str, Any], wire.Arrays, dict[str, str]]


@pytest.fixture
def honest(recorded, tmp_path, monkeypatch) -> Order:
    """An order as the server of a federation gives it, its arrays and the node's settings."""
    monkeypatch.chdir(tmp_path)
    return copy.deepcopy(recorded)


_recorded: list[Order] = []


@pytest.fixture
def recorded(federation, tmp_path_factory, monkeypatch) -> Order:
    """The same, from one round that all tests share, with the node's folders."""
    if not _recorded:
        shared = tmp_path_factory.mktemp("recorded") / "flower"
        _recorded.append(_record(federation(str(shared), rounds=1), monkeypatch))
    order, arrays, node = _recorded[0]
    assert Path(node["data"]).is_dir(), "an order would be refused for want of it"
    return order, arrays, node


def _record(made: Any, monkeypatch: pytest.MonkeyPatch) -> Order:
    seen: list[tuple[dict[str, Any], wire.Arrays]] = []
    unpack = wire.unpack

    def listen(content: RecordDict) -> tuple[dict[str, Any], wire.Arrays]:
        facts, arrays = unpack(content)
        if "clients" in facts and "blueprint" in facts:
            seen.append((copy.deepcopy(facts), arrays))
        return facts, arrays

    with monkeypatch.context() as patch:
        patch.setattr(wire, "unpack", listen)
        made.play()
    folder = made.nodes[100]
    node = {"data": str(folder / "data"), "state": str(folder / "state")}
    return *seen[0], node


def send(
    order: dict[str, Any], arrays: wire.Arrays, node: dict[str, Any], kind: str = "train"
) -> dict[str, Any]:
    message = Message(wire.pack(order, arrays), 100, kind)
    reply = client_app.app(message, Context(1, 100, node, RecordDict(), {}))
    return wire.unpack(reply.content)[0]


def config(**changes: Any) -> Any:
    return lambda order: order["blueprint"]["config"].update(changes)


TOUCH = {"args": ["touch", "executed"]}
HOSTILE = {
    "a process as the model": config(model="subprocess:Popen", model_options=TOUCH),
    "a process as the method": config(method="subprocess:Popen", options=TOUCH),
    "a shell as the model": config(model="os:system", model_options={"command": "touch executed"}),
    "code as the model": config(model="builtins:exec", model_options={"source": "1/0"}),
    "pickle as the model": config(model="pickle:loads", model_options={"data": "x"}),
    "torch's own loader": config(model="torch:load", model_options={"f": "x"}),
    "a hub": config(model="torch.hub:load", model_options={"repo_or_dir": "x", "model": "y"}),
    "a file of the working directory as the model": config(model="hostile:small"),
    "a file of the working directory as the method": config(method="hostile:small"),
    "a name with a dot": config(model="hostile.nets:small"),
    "a relative name": config(model=".hostile:small"),
    "a name of ours that is no model": config(model="specgrad_fl.cli:main"),
    "a data set from a file": config(dataset="npz:hostile.npz", data_root="."),
    "a filter by name": config(filter="hostile:small"),
    "a backend by name": config(filter="fft", filter_backend="hostile:small"),
    "a device of another kind": config(device="hostile"),
    "a partition by name": config(partition="hostile:small"),
    "a run outside of the state folder": lambda order: order.update(run="../../hostile"),
    "a client by path": lambda order: order.update(clients=["../../hostile"]),
    "a client below zero": lambda order: order.update(clients=[-1]),
    "a state by path": lambda order: order.update(newest={"0": "../../hostile"}),
    "a blueprint that is no table": lambda order: order.update(blueprint="hostile:small"),
    "a setting that does not exist": config(hostile="hostile:small"),
}
# where a node loads the data set itself, more of an order has a meaning
HOSTILE_TO_PARTS = {
    "a module as the data set": config(dataset="hostile:small"),
    "a process as the data set": config(dataset="subprocess:Popen", data_options=TOUCH),
    "a file as the data set": config(dataset="npz:hostile.npz"),
    "a folder as the data set": config(dataset="images:.."),
    "a folder of data sets": config(dataset="cifar10", data_root="../hostile"),
    "a file by an option": config(dataset="cifar10_c", data_options={"corruptions": "../hostile"}),
    "an option that is none": config(data_options={"folder": "hostile"}),
    "a division by name": config(partition="hostile:small"),
}
PARTS = {"partition-id": 0, "num-partitions": 3}
ATTACKS = [(name, {}) for name in HOSTILE] + [(name, PARTS) for name in HOSTILE_TO_PARTS]


@pytest.mark.parametrize("kind", ["query", "train"])
@pytest.mark.parametrize(("name", "place"), ATTACKS, ids=[name for name, _ in ATTACKS])
def test_an_order_imports_and_executes_nothing(name, place, kind, honest, monkeypatch):
    order, arrays, node = honest
    node = place or node
    monkeypatch.setenv("FLWR_HOME", "node-home")
    Path("hostile.py").write_text(MODULE, encoding="utf-8")
    np.savez("hostile.npz", x_train=np.zeros(1))
    files = sorted(path for path in Path().rglob("*") if "node-" not in path.as_posix())
    named: list[str] = []
    import_module = importlib.import_module
    monkeypatch.setattr(
        importlib, "import_module", lambda n, *a: (named.append(n), import_module(n, *a))[1]
    )
    opened: list[str] = []
    watching.append(lambda event, path: event == "open" and opened.append(str(path)))
    (HOSTILE | HOSTILE_TO_PARTS)[name](order)
    try:
        told = send(order, arrays, node, kind)
    finally:
        watching.clear()
    assert not {"subprocess", "os", "builtins", "pickle", "hostile"} & set(named)
    assert sorted(p for p in Path().rglob("*") if "node-" not in p.as_posix()) == files
    assert not [path for path in opened if "hostile" in path]
    assert "Traceback" not in json.dumps(told)
    if place:
        assert "refusal" in told


def test_what_the_operator_allowed_is_built(honest):
    order, arrays, node = honest
    Path("nets.py").write_text(MODULE, encoding="utf-8")
    order["blueprint"]["config"]["model"] = "nets:small"
    assert "'nets:small' is not allowed on this machine" in send(order, arrays, node)["refusal"]
    assert not Path("imported").exists()
    told = send(order, arrays, {**node, "allow": "other:net, nets:small"})
    assert "weights from the server" in told["refusal"]  # those of another model
    assert Path("imported").exists()
