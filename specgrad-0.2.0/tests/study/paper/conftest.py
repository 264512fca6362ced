"""Experiments at smoke size, their runs shared within a test process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from specgrad_fl import cli
from specgrad_fl.config import Config
from specgrad_fl.runs import RunDirectory
from specgrad_study.paper import timing
from specgrad_study.paper.archive import Archive, Results
from specgrad_study.paper.experiment import Cell, Experiment
from specgrad_study.paper.presets import PRESETS
from specgrad_study.paper.registry import EXPERIMENTS


@dataclass(frozen=True)
class Played:
    """An experiment after `specgrad-fl reproduce NAME --preset smoke`."""

    experiment: Experiment
    runs: Path
    report: Path

    @property
    def markdown(self) -> str:
        return (self.report / "report.md").read_text(encoding="utf-8")

    @property
    def html(self) -> str:
        return (self.report / "report.html").read_text(encoding="utf-8")

    @property
    def results(self) -> dict[str, Any]:
        stored = json.loads((self.report / "results.json").read_text(encoding="utf-8"))
        return stored["experiments"][self.experiment.name]

    @property
    def cells(self) -> list[Cell]:
        """The cells that this preset runs."""
        cells = self.experiment.cells(PRESETS["smoke"]())
        return [cell for cell in cells if cell.config is not None]

    def run(self, row: str, column: str | None = None, seed: int = 0) -> RunDirectory:
        cells = [c for c in self.cells if c.row == row and column in (None, c.column)]
        return self.run_of(cells[0], seed)

    def run_of(self, cell: Cell, seed: int = 0) -> RunDirectory:
        return Archive(self.runs).directory(cell.config.replace(seed=seed))

    def weights(self, row: str, column: str | None = None) -> torch.Tensor:
        """The last weights of a run as one vector."""
        stored = load_file(self.run(row, column).path / "last.safetensors")
        return torch.cat([v.flatten() for k, v in stored.items() if k.startswith("model.")])

    def read(self) -> Results:
        """The table."""
        cells = self.experiment.cells(PRESETS["smoke"]())
        return self.experiment.reading(cells, Archive(self.runs), "last10")

    def value(self, row: str, column: str) -> float:
        """A cell's value for seed 0."""
        return self.read()[row, column].values[0]


@pytest.fixture(scope="session")
def smoke_runs(tmp_path_factory) -> Iterator[Path]:
    """One folder of runs for all experiments."""
    folder = tmp_path_factory.mktemp("smoke")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def play(smoke_runs) -> Callable[[str], Played]:
    """Plays an experiment, once."""
    played: dict[str, Played] = {}
    peak_of, measured = timing._peak_of, []

    def peak_of_the_first(config: Config) -> float:
        """Every contender's would be another process that imports torch."""
        if not measured:
            measured.append(peak_of(config))
        return measured[0]

    def play(name: str) -> Played:
        if name not in played:
            report = smoke_runs / f"report-{name}"
            flags = [f"--runs={smoke_runs}", f"--out={report}", "--preset=smoke", "--quiet"]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(timing, "_peak_of", peak_of_the_first)
                assert cli.main(["reproduce", name, *flags]) == 0
            played[name] = Played(EXPERIMENTS[name], smoke_runs, report)
        return played[name]

    return play
