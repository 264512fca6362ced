"""The Flower app in Flower's own simulation: two rounds, equal to the bit. It needs Ray."""

from __future__ import annotations

import pytest
from federations import SMALL, result_of
from specgrad_fl import Config, training
from specgrad_fl.runs import RunDirectory
from stock import Stock

pytest.importorskip("flwr")
pytest.importorskip("ray")


def test_two_rounds_in_simulation_are_those_of_one_process(tmp_path):
    settings = {**SMALL, "clients": 3, "active": 3, "rounds": 2, "method": "scaffold"}
    config = Config(**settings, filter="fft", seed=3)
    simulation = Stock(tmp_path, 0, simulation=True)
    try:
        simulation.start()
        number = simulation.submit(config, "run", "--federation-config", "num-supernodes=3")
        here = training.train(config, tmp_path / "here")
        simulation.said(number)
        status = simulation.status(number)
    finally:
        simulation.stop()
    assert status == "finished:completed", simulation.log("superlink")
    there = RunDirectory(tmp_path / "run")
    assert result_of(there) == result_of(here)
