"""``specgrad-fl diagnose``: from a run or from gradient files to a table, pictures and ratios."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specgrad_fl import storage
from specgrad_fl.errors import ConfigError, RunError, suggest
from specgrad_fl.own_code import check_allowed
from specgrad_fl.runs import RunDirectory

from specgrad_kernels.spec import METHODS
from specgrad_study.diagnosis import files, replay
from specgrad_study.diagnosis.collect import FULL, SOURCES, UPDATE, Changes, Request, Say
from specgrad_study.diagnosis.report import Diagnosis, as_json, as_text, theory
from specgrad_study.diagnosis.sharpness import UNFILTERED
from specgrad_study.fleet import status


def tried(filters: list[str], orders: list[str]) -> dict[str, Changes]:
    """The filters to try, by label: methods, and flattening orders of the diagnosed filter."""
    if filters == ["none"]:
        filters = []
    for name in filters:
        if name not in METHODS:
            raise ConfigError(f"--filters has {name!r}; choose from {', '.join(METHODS)}")
    by_method: dict[str, Changes] = {name: {"method": name} for name in filters}
    return by_method | {f"order {order}": {"order": order} for order in orders}


def run(arguments: argparse.Namespace) -> None:
    """The command."""
    if (arguments.run is None) == (not arguments.gradients):
        raise ConfigError("give either a run directory or --gradients FILE FILE")
    _check_source(arguments)
    if arguments.source not in SOURCES:
        raise ConfigError(f"--source is {arguments.source!r}; {suggest(arguments.source, SOURCES)}")
    if arguments.smoothness is not None and not arguments.smoothness > 0:
        raise ConfigError(f"--smoothness is {arguments.smoothness}; it must be positive")
    if arguments.noise_batches < 0:
        raise ConfigError(f"--noise-batches is {arguments.noise_batches}; the least is 0")
    given = {"ratio": arguments.ratio, "order": arguments.order}
    after = tried(arguments.filters, arguments.orders)
    request = Request(
        changes={name: value for name, value in given.items() if value is not None},
        after=after,
        noise_batches=arguments.noise_batches,
        local=arguments.local or arguments.source == UPDATE,
        batch=arguments.local or arguments.source != FULL,
        sharpness=(UNFILTERED, *after) if arguments.sharpness else (),
    )
    diagnose = _from_files if arguments.gradients else _from_run
    with status(arguments.quiet) as say:
        diagnose(arguments, request, say)


def _check_source(arguments: argparse.Namespace) -> None:
    """Refuse a flag that means nothing for what is diagnosed."""
    if arguments.gradients:
        other = "a run"
        flags = ["rounds", "local", "sharpness", "smoothness", "data_root", "source"]
    else:
        other = "gradient files"
        flags = ["weights", "select"]
    for name in flags:
        if getattr(arguments, name) not in (None, [], "", False, FULL):
            raise ConfigError(f"--{name.replace('_', '-')} is about {other}; leave it out")


def _from_run(arguments: argparse.Namespace, request: Request, say: Say) -> None:
    source = RunDirectory(arguments.run)
    config = source.config()
    source.check()
    check_allowed(config.own_code, arguments.allow, str(source.config_path))
    if arguments.data_root:
        config = config.replace(data_root=arguments.data_root)
    if not source.partition_path.is_file():
        raise RunError(f"{source.path} has no partition.npz yet; resume the run first")
    out = arguments.out or source.path / "diagnosis"
    rounds = arguments.rounds or [source.load_rounds()]
    measured = replay.along(config, rounds, out, request, source=source, say=say)
    samples = max(source.partition().sizes)
    limits = (arguments.share, arguments.rho_limit)
    diagnosis = Diagnosis(source.path.name, measured, *limits, arguments.source)
    _write(out, diagnosis, theory(measured, config, samples, arguments.smoothness))


def _from_files(arguments: argparse.Namespace, request: Request, say: Say) -> None:
    measured = files.from_files(
        arguments.gradients, arguments.weights, arguments.select, request, say
    )
    title = f"{len(arguments.gradients)} gradient files"
    diagnosis = Diagnosis(title, [measured], arguments.share, arguments.rho_limit)
    _write(arguments.out or Path("diagnosis"), diagnosis, theory([measured]))


def _write(out: Path, diagnosis: Diagnosis, bounds: dict[str, Any]) -> None:
    """All files, then the table on standard output."""
    from specgrad_study.diagnosis import pictures  # matplotlib takes a second to import

    found = as_json(diagnosis, bounds)
    storage.make_folder(out)
    pictures.bands(out / "bands.png", {diagnosis.title: found["bands"]["energy"]})
    pictures.layers(out / "layers.png", diagnosis)
    pictures.after_filter(out / "filter.png", diagnosis)
    for checkpoint in diagnosis.checkpoints:
        if checkpoint.similarity:
            pictures.similarity(out / f"similarity-{checkpoint.round}.png", checkpoint)
    storage.write_text(out / "ratios.toml", diagnosis.ratios_toml())
    storage.write_json(out / "diagnosis.json", found)
    print(as_text(diagnosis))
    print(f"\nwritten to {out}: " + ", ".join(sorted(p.name for p in out.iterdir() if p.is_file())))
