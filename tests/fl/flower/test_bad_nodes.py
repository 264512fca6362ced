"""Stock Flower processes whose nodes lie, replay, are slow and die: named, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from federations import SMALL, result_of
from specgrad_fl import Config, training
from specgrad_fl.engine import Engine
from specgrad_fl.runs import RunDirectory
from stock import PATIENCE, Stock, waited

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

# of client k on node k mod 3; nobody is left out because the machine is slow
CONFIG = Config(**SMALL, method="scaffold").replace(
    active=6, client_timeout=PATIENCE, join_timeout=PATIENCE
)
LIAR, REPLAYER, SLOW = "node-0", "node-1", "node-2"
# client 0 alone: of what else its node answers, nothing is lost
LEFT_OUT = {1: [0], 2: [0, 1, 4], 3: [0, 1, 2, 4, 5]}
REASONS = {
    1: {0: "times as long as the round's median"},
    2: {0: "its weights are not finite", 1: "an answer to round 0", 4: "an answer to round 0"},
    3: {0: "impossible", 1: "an answer to round 0", 4: "an answer to round 0"},
}
# what all these processes import before anything else; FOLDER is for news between them and us
BEHAVIOUR = """
import importlib.abc
import importlib.util
import os
import pathlib
import pickle
import sys
import time

FOLDER, NODE = pathlib.Path({folder!r}), os.environ.get("STOCK")


def be_patient(constants):
    # Flower gives up a process that takes longer to start, and starts one more
    constants.HEARTBEAT_DEFAULT_INTERVAL = constants.HEARTBEAT_MAX_INTERVAL


def misbehave(app):
    work = app._work
    app._work = lambda order, *rest: answer(order, *work(order, *rest))


def answer(order, facts, arrays):
    number, kept = order["round"], FOLDER / "answer of round 0"
    if NODE == "node-0":
        if number < 2:
            arrays["0/weights"].fill([1e38, float("nan")][number])
        else:
            facts["reports"]["0"]["loss"] = 10**400
    elif NODE == "node-1":
        if number == 0:
            kept.write_bytes(pickle.dumps((facts, arrays)))
        facts, arrays = pickle.loads(kept.read_bytes())
    else:
        parent = os.getppid()
        (FOLDER / f"{{NODE}} is slow in {{number}}").touch()
        while not (FOLDER / f"go on in {{number}}").exists():
            if os.getppid() != parent:
                os._exit(1)
            time.sleep(0.05)
    (FOLDER / f"{{NODE}} answers {{number}}").touch()
    return facts, arrays


CHANGES = {{"flwr.common.constant": be_patient, "specgrad_fl.flower.client_app": misbehave}}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        change = CHANGES.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), change(module))
        return spec


sys.meta_path.insert(0, Finder())
"""


@pytest.fixture
def stock(tmp_path):
    """A SuperLink and three nodes, whose processes behave as their operators want."""
    made = Stock(tmp_path, 3)
    behaviour = BEHAVIOUR.format(folder=str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(behaviour)
    made.env["PYTHONPATH"] = str(tmp_path)
    try:
        yield made.start()
    finally:
        made.stop()


def test_bad_nodes_are_named_and_nothing_else_changes(stock, tmp_path, monkeypatch):
    run = RunDirectory(tmp_path / "run")
    (tmp_path / "go on in 0").touch()
    stock.submit(CONFIG, "run")

    def told(*names: str) -> None:
        link = stock.processes["superlink"]
        waited(lambda: all((tmp_path / name).exists() for name in names), link)

    told(f"{SLOW} is slow in 1", f"{LIAR} answers 1", f"{REPLAYER} answers 1")
    (tmp_path / "go on in 1").touch()
    told(f"{SLOW} is slow in 2")
    stock.processes[SLOW].kill()
    stock.forget(SLOW)
    waited(lambda: run.finished, stock.processes["superlink"])

    records = run.records()
    assert {record["round"]: record["left_out"] for record in records} == LEFT_OUT
    for record in records:
        reasons = dict(reason.split(": ", 1) for reason in record["reasons"])
        for client, why in REASONS[record["round"]].items():
            assert why in reasons[f"client {client}"]

    honest = Engine._guarded

    def without_them(self, reports):
        gone = LEFT_OUT[self.state.rounds + 1]
        return honest(self, [replace(r, finite=r.client not in gone) for r in reports])

    monkeypatch.setattr(Engine, "_guarded", without_them)
    here = training.train(CONFIG, tmp_path / "here")
    assert result_of(run) == result_of(here)
    told = ("clients", "train_loss", "test_accuracy", "test_loss")
    assert [[r[k] for k in told] for r in records] == [[r[k] for k in told] for r in here.records()]
