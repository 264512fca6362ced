"""Small federations for every test of this folder, without the pictures of their runs."""

import pytest
from federations import make_engine, play, restore_threads, small
from specgrad_fl import plots
from specgrad_fl.partition import Partition

__all__ = ["make_engine", "play", "restore_threads", "small"]


@pytest.fixture(autouse=True)
def no_pictures_of_runs(monkeypatch):
    """They cost several times the rounds of so small a run, and are tested with the trainer."""
    monkeypatch.setattr(plots, "curves", lambda path, runs: None)
    monkeypatch.setattr(Partition, "heatmap", lambda partition, path, labels, classes: None)
