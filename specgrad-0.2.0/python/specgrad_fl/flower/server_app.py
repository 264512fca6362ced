"""The ServerApp: the engine's own round loop, with clients on nodes."""

from __future__ import annotations

import functools
import uuid
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from specgrad_data import Dataset

from specgrad_fl import storage, training
from specgrad_fl.config import Config
from specgrad_fl.flower import app as settings
from specgrad_fl.flower.executor import FlowerExecutor
from specgrad_fl.prepare import prepare
from specgrad_fl.records import Record
from specgrad_fl.runs import RunDirectory, check_same, extended

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Begin the run that the run's configuration describes, or play the rounds left of it."""
    config, out = settings.read(context.run_config)
    run = RunDirectory(Path(out) if out else Path("runs") / str(context.run_id))
    prepared = prepare(config)  # refuses before anything is written
    with run.locked():
        config, dataset = take_up(run, config, prepared)
        print(f"run directory: {run.path.absolute()}; {dataset.describe()}", flush=True)
        if run.finished:
            print("the run has finished all its rounds already", flush=True)
            return
        on_nodes = functools.partial(FlowerExecutor, grid, identity(run))
        training.carry_on(run, config, _say, on_nodes, dataset)


def take_up(
    run: RunDirectory, config: Config, prepared: training.Prepared
) -> tuple[Config, Dataset]:
    """Begin a run, or open one that was begun with the same settings; it may be made longer."""
    if not run.exists:
        dataset = training.begin(run, config, prepared)
        return run.config(), dataset
    stored = run.config()
    if config.rounds != stored.rounds:
        stored = extended(run, stored, config.rounds)
    resolved, dataset, _ = prepared
    asked = {k: v for k, v in resolved.as_dict().items() if k not in settings.COMMAND_KEYS}
    kept = {name: getattr(stored, name) for name in settings.COMMAND_OPTIONS}
    return stored.replace(**check_same(stored, asked), **kept, engine="flower"), dataset


def identity(run: RunDirectory) -> str:
    """The name under which nodes keep this run's client states, drawn when first asked for."""
    path = run.path / "flower" / "identity"
    if not path.is_file():
        storage.make_folder(path.parent)
        storage.write_text(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8")


def _say(record: Record, config: Config) -> None:
    """For whoever reads the server's log."""
    score = "".join(f", {k} {v:.4f}" for k, v in record.items() if k.endswith("_accuracy"))
    print(f"round {record['round']} of {config.rounds}{score}", flush=True)
    for why in (*record.get("refused", ()), *record.get("reasons", ())):
        print(f"left out: {why}", flush=True)
