"""Federated training with spectral gradient filtering: methods, models, data and runs.

The command is ``specgrad-fl``; the same from Python:

    from specgrad_fl import Config, train
    run = train(Config(method="fedavg", filter="fft", rounds=5), out="runs/first")
    print(run.summary()["final_accuracy"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError

if TYPE_CHECKING:
    from specgrad_fl.training import resume, train

__all__ = ["Config", "ConfigError", "RunError", "resume", "train"]


def __getattr__(name: str) -> Any:
    """Load torch when it is first needed, so that ``--help`` answers at once."""
    if name in ("resume", "train"):
        from specgrad_fl import training

        return getattr(training, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
