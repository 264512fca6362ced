"""The ServerApp: the engine's own round loop, with clients on nodes."""

from __future__ import annotations

import functools
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from specgrad_fl import progress, training
from specgrad_fl.errors import RunError
from specgrad_fl.flower import rundir
from specgrad_fl.flower.executor import FlowerExecutor
from specgrad_fl.flower.node import version
from specgrad_fl.runs import RunDirectory

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the rounds that are left of the run directory named in the run's configuration."""
    asked = context.run_config["specgrad"]
    if asked != version():
        raise RunError(
            f"the SuperLink's machine has specgrad {version()} and the command is of {asked}; "
            "install the same version on both"
        )
    run = RunDirectory(Path(str(context.run_config["run"])))
    if not run.exists:
        raise RunError(
            f"{run.path} is not a run directory on the SuperLink's machine; start "
            "`specgrad-fl train` there"
        )
    place = rundir.FlowerFiles(run)
    with place.outcome():
        elsewhere = functools.partial(FlowerExecutor, grid, place.identity())
        training.carry_on(run, run.config(), progress.silent, elsewhere)
