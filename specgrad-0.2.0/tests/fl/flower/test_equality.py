"""The Flower engine gives the bits of the in-process engine, for every method."""

from __future__ import annotations

import pytest
from federations import result_of, rounds_of
from representatives import only
from specgrad_fl import training
from specgrad_fl.methods import METHODS


@pytest.mark.parametrize("method", only(["scaffold", "fedlws"], METHODS))
def test_same_bits_and_the_payload_of_the_specification(tmp_path, small, federation, method):
    """One client on each node: what is sent is ``down`` and ``up`` times the model."""
    settings = {"method": method, "filter": "fft", "clients": 4, "rounds": 2, "seed": 4}
    here = training.train(small(**settings), tmp_path / "here")
    there = federation(nodes=4, **settings).play()
    assert rounds_of(here) == rounds_of(there)
    assert result_of(here) == result_of(there)
    assert here.best_path.read_bytes() == there.best_path.read_bytes()
    for record in there.records():
        for way in ("down", "up"):
            assert record["wire_bytes"][way] == pytest.approx(record[f"bytes_{way}"], rel=0.01)


def test_bernoulli_draws_and_batchnorm(tmp_path, small, federation, monkeypatch):
    (tmp_path / "nets_for_flower.py").write_text(
        "from torch import nn\n"
        "def make(num_classes, in_channels):\n"
        "    return nn.Sequential(nn.Conv2d(in_channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),\n"
        "        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"model": "nets_for_flower:make", "sampling": "bernoulli", "rounds": 3}
    here = training.train(small(**settings), tmp_path / "here")
    made = federation(nodes=2, **settings)
    for node in made.grid.nodes.values():
        node["allow"] = settings["model"]
    there = made.play()
    assert rounds_of(here) == rounds_of(there)
    assert result_of(here) == result_of(there)
