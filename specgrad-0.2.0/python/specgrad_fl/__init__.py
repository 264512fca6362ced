"""Federated training with spectral gradient filtering: methods, models, data and runs.

The command is ``specgrad-fl``; the same from Python:

    from specgrad_fl import Config, load_run, train
    train(Config(method="fedavg", filter="fft", rounds=5), out="runs/first")
    run = load_run("runs/first")
    run.summary["final_accuracy"], run.rows(), run.predict(images)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError

if TYPE_CHECKING:
    from specgrad_fl.results import LoadedRun, load_run
    from specgrad_fl.training import resume, train

__all__ = ["Config", "ConfigError", "LoadedRun", "RunError", "load_run", "resume", "train"]
_HOMES = {"train": "training", "resume": "training", "load_run": "results", "LoadedRun": "results"}


def __getattr__(name: str) -> Any:
    """Load torch when it is first needed, so that ``--help`` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"specgrad_fl.{_HOMES[name]}"), name)
