"""A kill, and a full disk, at every single file operation of a run: to the byte.

What a process that is killed leaves is what its folder holds at that moment. So one run is played,
its folder is copied before every operation that changes a file, and every copy is finished.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from federations import experiment, files_of, rounds_of, tiny
from representatives import only
from specgrad_fl import cli, models, plots, training
from specgrad_fl.config import Config
from specgrad_fl.errors import RunError
from specgrad_fl.methods import METHODS
from specgrad_fl.runs import RunDirectory
from specgrad_study.paper import registry

# what Python tells of before it is done, with the place of the file's name
CHANGES = {"os.rename": 1, "os.link": 1, "os.remove": 0, "os.mkdir": 0, "os.rmdir": 0}
REMOVALS = ("os.remove", "os.rmdir")
Heard = Callable[[str, Path], None]
_listener: Heard | None = None


def _hear(event: str, arguments: tuple) -> None:
    """Tell the listener of an operation that changes a file."""
    if _listener is None:
        return
    if event == "open":
        name, _, flags = arguments
        if not (isinstance(name, str | Path) and flags & (os.O_WRONLY | os.O_RDWR)):
            return
        _listener(event, Path(name))
    elif event in CHANGES:
        _listener(event, Path(os.fsdecode(arguments[CHANGES[event]])))


sys.addaudithook(_hear)


@contextlib.contextmanager
def listening(folder: Path, heard: Heard, patch) -> Iterator[None]:
    """Call ``heard`` before every operation on a file of ``folder``, and before every fsync."""
    global _listener

    def within(event: str, path: Path) -> None:
        global _listener
        if folder == path or folder in path.parents:
            _listener = None  # not of what the listener does itself
            try:
                heard(event, path)
            finally:
                _listener = within

    def synced(handle: int) -> None:
        within("os.fsync", Path(os.readlink(f"/proc/self/fd/{handle}")))

    with patch.context() as context:
        context.setattr(os, "fsync", synced)
        _listener = within
        try:
            yield
        finally:
            _listener = None


@pytest.fixture(autouse=True)
def _tiny_model(monkeypatch):
    monkeypatch.setitem(models.MODELS, "tiny", tiny)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # of a machine that stays alive
    torch.set_num_threads(1)


SETTINGS = {"clients": 4, "active": 3, "rounds": 2, "model": "tiny", "batch_size": 400}


def federation(small, method: str):
    return small(**SETTINGS, method=method, validation=0.1)


class Copies(list):
    """Copies of a folder before every operation that finds it changed; ``operations`` counts."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.operations = folder, 0
        self._seen: set[frozenset] = set()

    def __call__(self, *_: object) -> None:
        self.operations += 1
        if not self.folder.exists() or (held := contents(self.folder)) in self._seen:
            return
        self._seen.add(held)
        self.append(self.folder.with_name(f"{self.folder.name}{len(self)}"))
        shutil.copytree(self.folder, self[-1])


def finish(config, path: Path) -> RunDirectory:
    run = RunDirectory(path)
    return training.resume(path) if run.exists else training.train(config, path)


def contents(folder: Path) -> frozenset:
    """Everything below a folder, to see whether something has changed."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return frozenset((str(path.relative_to(folder)), path.read_bytes()) for path in files)


def assert_same(run: RunDirectory, reference: RunDirectory) -> None:
    assert files_of(run) == files_of(reference)
    assert rounds_of(run) == rounds_of(reference)
    assert run.summary()["final_accuracy"] == reference.summary()["final_accuracy"]
    assert not list(run.path.rglob("*.specgrad-tmp"))


# in the suite every seventh moment of one method
MOMENTS = only([("scaffold", 13)], [("scaffold", 13), *((method, 1) for method in METHODS)])


@pytest.mark.parametrize(("method", "step"), MOMENTS)
def test_killed_before_every_file_operation(tmp_path, small, method, step, monkeypatch):
    config, copies = federation(small, method), Copies(tmp_path / "run")
    with listening(tmp_path / "run", copies, monkeypatch):
        reference = training.train(config, tmp_path / "run")
    assert copies.operations > 50
    assert len(copies) > 20
    for path in copies[::step]:
        assert_same(finish(config, path), reference)
        shutil.rmtree(path)


@pytest.mark.parametrize(("method", "step"), MOMENTS)
def test_a_disk_that_is_full_at_every_file_operation(tmp_path, small, method, step, monkeypatch):
    config = federation(small, method)
    reference = training.train(config, tmp_path / "reference")
    events: list[str] = []
    with listening(tmp_path / "count", lambda event, _: events.append(event), monkeypatch):
        training.train(config, tmp_path / "count")
    needing_room = [n for n, event in enumerate(events) if event not in REMOVALS]
    for number in needing_room[::step]:
        path = tmp_path / "run"
        left = number

        def full(event: str, _: Path) -> None:
            nonlocal left
            left -= 1
            if left < 0 and event not in REMOVALS:
                raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(RunError, match="No space left"), listening(path, full, monkeypatch):
            training.train(config, path)
        assert_same(finish(config, path), reference)
        shutil.rmtree(path)


FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
# words of the command, and the files that must come out equal
COMMANDS = {
    "compare": (["--filters=none", "--seeds=0,1", "--workers=1", *FLAGS], ["compare.json"]),
    "tune": (["--grid=lr=0.05,0.1", "--limit=3", "--workers=1", *FLAGS], ["grid.json"]),
    "reproduce": (["one", "--preset=smoke"], ["report/results.json", "report/configuration.toml"]),
}


def accuracies(value: object) -> object:
    """A report without what a clock or the operating system measured."""
    measured = ("s/round", "filter %", "peak MiB")
    if isinstance(value, dict):
        return {k: accuracies(v) for k, v in value.items() if k not in measured}
    return [accuracies(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("name", "step"), only([("compare", 20)], [("compare", 20), *((name, 1) for name in COMMANDS)])
)
def test_commands_of_many_runs_are_killed_and_started_again(tmp_path, name, step, monkeypatch):
    """Before every file operation of their runs and of the report that they write."""
    monkeypatch.setitem(
        registry.EXPERIMENTS, "one", experiment(Config(**SETTINGS, workers=1), 0, 1)
    )
    monkeypatch.setattr(plots, "save", lambda figure, path, **_: path.touch())
    words, names = COMMANDS[name]

    def told(folder: Path) -> list:
        place = f"--{'runs' if name == 'reproduce' else 'out'}={folder}"
        assert cli.main([name, *words, place, "--quiet"]) == 0
        texts = [(folder / file).read_text() for file in names]
        return [accuracies(json.loads(t)) if t.startswith("{") else t for t in texts]

    copies = Copies(tmp_path / "out")
    with listening(tmp_path / "out", copies, monkeypatch):
        expected = told(tmp_path / "out")
    assert len(copies) > 40
    for path in copies[::step]:
        assert told(path) == expected
        shutil.rmtree(path)
