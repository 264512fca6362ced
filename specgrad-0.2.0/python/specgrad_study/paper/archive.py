"""Finished runs and measured values, from a folder or from an earlier report.

Each knows its source: the machine, the commit, and the report that it was taken from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specgrad_fl.config import Config
from specgrad_fl.errors import RunError
from specgrad_fl.runs import RunDirectory

from specgrad_study.compare import MEASURES
from specgrad_study.fleet import FAILURE, Job
from specgrad_study.paper.published import Place

FORMAT = 2
# in a run with held-out samples the best round is chosen on them, and has no test accuracy
KEYS = (*(key for key, _ in MEASURES.values()), "validation_mean_last_10")
UNKNOWN = "unknown"
# what Markdown and HTML give a meaning to, and no name of a machine or a row needs
MARKUP = frozenset("<>[]*`|\\")


def without_markup(text: str) -> str:
    """A text that came from elsewhere, as a report may show it.

    >>> without_markup("EPYC<script>")
    'EPYCscript'
    """
    return "".join(each for each in text if each.isprintable() and each not in MARKUP)


@dataclass(frozen=True)
class Source:
    """A machine with its software in one line, and the commit of the code.

    report: the earlier report that a result was taken from; empty for a run at hand
    """

    machine: str = UNKNOWN
    commit: str = UNKNOWN
    report: str = ""

    @staticmethod
    def of(facts: Any) -> Source:
        """From the facts that :func:`specgrad_fl.machine.report` collects."""
        try:
            packages = ", ".join(f"{k} {v}" for k, v in facts["packages"].items())
            gpus = f", {', '.join(facts['gpus'])}" if facts["gpus"] else ""
            machine = (
                f"{facts['cpu']}, {facts['cores']} cores{gpus}, {facts['platform']}, Python "
                f"{facts['python']}, {packages}, filter backends "
                f"{', '.join(facts['filter_backends'])}"
            )
            return Source(machine, facts.get("commit") or UNKNOWN)
        except (KeyError, TypeError, AttributeError):
            return Source()

    def __str__(self) -> str:
        taken = f", from {self.report}" if self.report else ""
        return without_markup(f"commit {self.commit[:12]}{taken}: {self.machine}")


@dataclass(frozen=True)
class Missing:
    """Why a value is missing; of no seed where that holds for the whole cell."""

    seed: int | None
    why: str

    def __str__(self) -> str:
        return self.why if self.seed is None else f"seed {self.seed}: {self.why}"


LEFT_OUT = Missing(None, "left out by this preset")


@dataclass(frozen=True)
class Measured:
    """The values of a cell by seed, where each was made, and why others are missing."""

    values: dict[int, float] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()
    sources: dict[int, Source] = field(default_factory=dict)

    def filled(self, other: Measured) -> Measured:
        """With what ``other`` has of seeds that have no value here."""
        new = [seed for seed in other.values if seed not in self.values]
        return Measured(
            {**self.values, **{seed: other.values[seed] for seed in new}},
            tuple(each for each in self.missing if each.seed not in new),
            {**self.sources, **{seed: other.sources[seed] for seed in new}},
        )


Results = dict[Place, Measured]


@dataclass(frozen=True)
class Finished:
    """Results of a finished run.

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
            {key: summary[key] for key in KEYS if key in summary},
            {r["round"]: r["test_accuracy"] for r in run.records() if "test_accuracy" in r},
            Source.of(facts),
        )


@dataclass(frozen=True)
class Earlier:
    """The results of an earlier report.

    runs: by name; values: by experiment and place, for what is measured besides runs
    """

    path: Path
    preset: str
    runs: dict[str, Finished]
    values: dict[str, Results]

    @staticmethod
    def read(path: Path) -> Earlier:
        """From ``results.json``."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
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
            return Earlier._parse(path, stored)
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
                {key: float(each[key]) for key in KEYS if key in each},
                {int(number): float(v) for number, v in each["evaluations"].items()},
                sources[each["source"]],
            )
            for name, each in stored["runs"].items()
        }
        values = {
            experiment: {
                (without_markup(each["row"]), without_markup(each["column"])): Measured(
                    {int(seed): float(v) for seed, v in each["values"].items()},
                    sources={int(seed): sources[n] for seed, n in each["sources"].items()},
                )
                for each in held["values"]
            }
            for experiment, held in stored["experiments"].items()
        }
        return Earlier(path, str(stored["preset"]), runs, values)


@dataclass(frozen=True)
class Archive:
    """A folder of runs, and earlier reports for the runs that it lacks.

    Each run is looked up once: what finishes later, by another process, is not there half.
    """

    folder: Path
    earlier: tuple[Earlier, ...] = ()
    _known: dict[str, Finished | None] = field(default_factory=dict, repr=False, compare=False)

    def directory(self, config: Config) -> RunDirectory:
        """The folder of a run, which may not exist yet."""
        return RunDirectory(Job.of(config, self.folder).path)

    def finished(self, config: Config) -> Finished | None:
        """The run, if it is finished in the folder or in an earlier report."""
        run = self.directory(config)
        name = run.path.name
        if name not in self._known:
            taken = (each.runs[name] for each in self.earlier if name in each.runs)
            self._known[name] = Finished.read(run) if run.finished else next(taken, None)
        return self._known[name]

    def progress(self, config: Config) -> str:
        """Progress of an unfinished run."""
        run = self.directory(config)
        if (run.path / FAILURE).is_file():
            return "diverged"
        if not run.exists:
            return "not run"
        return f"at round {len(run.records())} of {run.config().rounds}"
