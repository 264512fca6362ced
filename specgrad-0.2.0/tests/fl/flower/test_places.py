"""A node's place: a folder of files, or a number and the data set; and mistakes about it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import specgrad_data.digits
from federations import result_of
from specgrad_fl import training
from specgrad_fl.errors import RunError
from specgrad_fl.flower import place


def numbered(made, count, **settings):
    """The nodes of a federation know nothing but their number."""
    for number, node in enumerate(made.grid.nodes.values()):
        node.clear()
        node.update({"partition-id": number, "num-partitions": count, **settings})


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_nodes_that_know_their_number_alone(tmp_path, small, federation, monkeypatch, method):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    settings = {"method": method, "filter": "fft", "rounds": 3, "validation": 0.2, "seed": 5}
    here = training.train(small(**settings), tmp_path / "here")
    made = federation(nodes=2, **settings)
    numbered(made, 2)
    assert result_of(made.play()) == result_of(here)
    kept = list((tmp_path / "home").rglob("*.safetensors"))
    assert bool(kept) == (method == "scaffold")
    for path in kept:
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0


def test_a_number_divides_the_files_of_a_folder_too(federation):
    made = federation(nodes=1, rounds=1, active=6, min_clients=6)
    first = made.grid.nodes.pop(100)
    for k in range(3):
        made.grid.nodes[k] = {**first, "partition-id": k, "num-partitions": 3}
    assert made.play().records()[0]["clients"] == list(range(6))


def test_the_data_root_is_the_nodes_own(federation, tmp_path):
    """A server cannot choose a folder of the node's machine."""
    made = federation(nodes=1, rounds=1, data_root=str(tmp_path))
    numbered(made, 1)
    made.play()


MISTAKES = {
    "no place": ({"partition-id": None}, "node 101: it has neither a folder of clients' samples"),
    "half a place": ({"num-partitions": None}, "node 101: partition-id is 1 and num-partitions No"),
    "a number too high": ({"partition-id": 2}, "node 101: partition-id is 2 and num-partitions 2"),
    "the same place": ({"partition-id": 0}, "node 101: it has client 0, and so has node 100"),
    "an empty folder": ({"data": "."}, r"node 101: \. has no client for partition 1 of 2"),
    "no folder": ({"data": "absent"}, "node 101: there is no data folder absent"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_the_name_of_the_node(federation, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    changes, message = MISTAKES[name]
    made = federation(rounds=1, nodes=2, min_clients=6)
    numbered(made, 2)
    node = made.grid.nodes[101]
    node.update(changes)
    for key in [key for key, value in node.items() if value is None]:
        del node[key]
    if name == "no place":
        del node["num-partitions"]
    with pytest.raises(RunError, match=message):
        made.play()
    # the clients of the other node can do without it, and the record says why it is not there
    made.run.reconfigure(made.run.config().replace(min_clients=1))
    (record,) = made.play().records()
    assert re.search(message, record["refused"][0])


def test_more_nodes_than_clients(federation):
    made = federation(rounds=1, nodes=2, clients=2, active=2)
    numbered(made, 2)
    made.grid.nodes[102] = {"partition-id": 2, "num-partitions": 3}
    made.grid.nodes[100]["num-partitions"] = made.grid.nodes[101]["num-partitions"] = 3
    made.run.reconfigure(made.run.config().replace(join_timeout=60))
    made.grid.nodes = dict(reversed(made.grid.nodes.items()))
    (record,) = made.play().records()
    message = "node 102: the data set has no client for partition 2 of 3"
    assert record["refused"][0].startswith(message)
    assert record["clients"] == [0, 1]


def test_another_data_set_on_one_node(federation, monkeypatch):
    """The server's is not this node's: it says so before the first round."""
    made = federation(rounds=1, nodes=1)
    numbered(made, 1)
    digits = specgrad_data.digits.load

    def changed(folder, corrupted=False):
        found = digits(folder, corrupted)
        found.train_x[0] = 255 - found.train_x[0]
        return found

    place._divided.cache_clear()
    real = made.grid._answer

    def answer(node, message):
        with monkeypatch.context() as patch:
            patch.setattr(specgrad_data.digits, "load", changed)
            return real(node, message)

    made.grid._answer = answer
    with pytest.raises(RunError, match=r"node 100: its data of client \d are not those of this"):
        made.play()
    place._divided.cache_clear()


def test_a_data_set_of_files_needs_leave(federation, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    y = np.arange(60) % 3
    np.savez("own.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    made = federation(rounds=1, nodes=1, clients=2, active=2, dataset="npz:own.npz")
    numbered(made, 1)
    with pytest.raises(RunError, match=r"node 100: dataset 'npz:own\.npz' is not allowed"):
        made.play()
    monkeypatch.setenv("SPECGRAD_ALLOW", "nets:small,npz:own.npz")
    assert len(made.play().records()) == 1
