"""Finished runs, from their folder or from an earlier report that has their results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specgrad_fl.config import Config
from specgrad_fl.errors import RunError
from specgrad_fl.runs import RunDirectory, run_name

from specgrad_study.compare import MEASURES
from specgrad_study.fleet import FAILURE, Job
from specgrad_study.paper.numbers import Place
from specgrad_study.paper.sources import Source

FORMAT = 2
KEYS = tuple(key for key, _ in MEASURES.values())


@dataclass(frozen=True)
class Finished:
    """What is known of a finished run.

    summary: the accuracies it is compared by; evaluations: accuracy after rounds, where known
    """

    name: str
    summary: Mapping[str, float]
    evaluations: Mapping[int, float]
    source: Source

    @staticmethod
    def read(run: RunDirectory) -> Finished:
        """From the folder of a run."""
        try:
            facts = json.loads((run.path / "environment.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            facts = None
        summary = run.summary()
        return Finished(
            run.path.name,
            {key: summary[key] for key in KEYS},
            {r["round"]: r["test_accuracy"] for r in run.records() if "test_accuracy" in r},
            Source.of(facts),
        )


# values by seed, and where each was made
Measurement = tuple[dict[int, float], dict[int, Source]]


@dataclass(frozen=True)
class Earlier:
    """The results of an earlier report.

    runs: by name; values: by experiment and place, for what is measured besides runs
    """

    path: Path
    preset: str
    measure: str
    runs: dict[str, Finished]
    values: dict[str, dict[Place, Measurement]]

    @staticmethod
    def read(path: Path) -> Earlier:
        """From ``results.json``."""
        try:
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise RunError(f"{path} is no JSON file: {error}") from error
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise RunError(
                f"{path} is no results.json of this version; give the one beside a report that "
                "`specgrad-fl reproduce` wrote"
            )
        try:
            return Earlier._parse(Path(path), stored)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise RunError(f"{path} is damaged ({error!r}); restore it") from error

    @staticmethod
    def _parse(path: Path, stored: dict[str, Any]) -> Earlier:
        named = f"{path.parent.name}/{path.name}"
        sources = [
            Source(each["machine"], each["commit"], each["report"] or named)
            for each in stored["sources"]
        ]
        runs = {
            name: Finished(
                name,
                {key: float(each[key]) for key in KEYS},
                {int(number): float(v) for number, v in each["evaluations"].items()},
                sources[each["source"]],
            )
            for name, each in stored["runs"].items()
        }
        values = {
            experiment: {
                (each["row"], each["column"]): (
                    {int(seed): float(v) for seed, v in each["values"].items()},
                    {int(seed): sources[number] for seed, number in each["sources"].items()},
                )
                for each in held["values"]
            }
            for experiment, held in stored["experiments"].items()
        }
        return Earlier(path, str(stored["preset"]), str(stored["measure"]), runs, values)


@dataclass(frozen=True)
class Archive:
    """A folder of runs, and earlier reports for the runs that it lacks."""

    folder: Path
    earlier: tuple[Earlier, ...] = field(default=())

    def directory(self, config: Config) -> RunDirectory:
        """The folder of a run, which may not exist yet."""
        return RunDirectory(Job.of(config, self.folder).path)

    def finished(self, config: Config) -> Finished | None:
        """The run, if it is finished in the folder or in an earlier report."""
        run = self.directory(config)
        if run.finished:
            return Finished.read(run)
        name = run_name(config)
        return next((each.runs[name] for each in self.earlier if name in each.runs), None)

    def progress(self, config: Config) -> str:
        """How far a run is that is not finished."""
        run = self.directory(config)
        if (run.path / FAILURE).is_file():
            return "diverged"
        if not run.exists:
            return "not run"
        return f"at round {len(run.records())} of {run.config().rounds}"
