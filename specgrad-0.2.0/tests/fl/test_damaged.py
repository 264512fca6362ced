"""Random changes of a run's files, through every reader: noticed, or without any effect."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from federations import SMALL, experiment, rounds_of, tiny
from specgrad_fl import cli, load_run, models, plots, toml, training
from specgrad_fl.config import Config
from specgrad_fl.errors import RunError
from specgrad_fl.runs import RunDirectory, run_name
from specgrad_fl.storage import client_path
from specgrad_study.paper import registry

CHANGES = 200
# changed, these cannot change a result: pictures, what other programs read, and locks
FOR_OTHERS = ("partition.png", "curves.png", "clients.png", "metrics.csv", "lock")
IN_THE_SUITE = 20
BEGUN_WITH = {
    **SMALL,
    "model": "tiny",
    "clients": 4,
    "rounds": 3,
    "method": "scaffold",
    "validation": 0.1,
}
NAME = run_name(Config(**BEGUN_WITH))  # by which other commands find it


@pytest.fixture(autouse=True)
def _tiny_model(monkeypatch):
    monkeypatch.setitem(models.MODELS, "tiny", tiny)
    monkeypatch.setattr(plots, "clients", lambda *_: None)
    monkeypatch.setattr(plots, "save", lambda *_, **__: None)
    monkeypatch.setitem(registry.EXPERIMENTS, "one", experiment(Config(**BEGUN_WITH), 0))


@pytest.fixture
def runs(tmp_path):
    """A finished run, one that was interrupted, and one of another seed."""
    config = Config(**BEGUN_WITH)
    finished = training.train(config, tmp_path / "finished")
    other = training.train(config.replace(seed=1), tmp_path / "other")
    stopped = tmp_path / "stopped"

    def stop(record, _):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(config, stopped, watch=stop)
    return {"finished": finished.path, "stopped": stopped, "other": other.path}


def flip(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content))
    changed = content[place] ^ 1 << draw.randrange(8)
    return content[:place] + bytes([changed]) + content[place + 1 :]


def insert(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content))
    return content[:place] + draw.randbytes(draw.randrange(1, 9)) + content[place:]


def digit(content: bytes, draw: random.Random) -> bytes:
    """Another digit, as a person may edit a number."""
    places = [n for n, byte in enumerate(content) if 0x30 <= byte <= 0x39]
    place = draw.choice(places or [0])
    return content[:place] + str(draw.randrange(10)).encode() + content[place + 1 :]


CONTENTS = {
    "flip": flip,
    "insert": insert,
    "digit": digit,
    "cut": lambda content, draw: content[: draw.randrange(len(content))],
    "twice": lambda content, draw: content + content,
    "empty": lambda content, draw: b"",
    "noise": lambda content, draw: draw.randbytes(draw.randrange(1, 400)),
}


def change(run: Path, others: list[Path], draw: random.Random) -> str:
    """Change one file of a run; what was done to it."""
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name not in FOR_OTHERS)
    path = draw.choice([p for p in files if p.stat().st_size])
    how = draw.choice([*CONTENTS, "remove", "another run's", "folder"])
    if how in CONTENTS:
        path.write_bytes(CONTENTS[how](path.read_bytes(), draw))
    elif how == "another run's":
        relatives = (other / path.relative_to(run) for other in others)
        path.write_bytes(draw.choice([p for p in relatives if p.is_file()] or [path]).read_bytes())
    else:
        path.unlink()
        path.mkdir() if how == "folder" else None
    return f"{how} {path.relative_to(run)}"


def told(path: Path) -> dict:
    """Everything that the readers tell of a run."""
    run = load_run(path)
    found = {
        "summary": run.summary,
        "rows": [{k: v for k, v in row.items() if "seconds" not in k} for row in run.rows()],
        "config": run.config.digest,
    }
    for which in ("best", "last", "previous"):
        weights = run.model(which).state_dict()
        found[which] = {name: tensor.numpy().tobytes() for name, tensor in weights.items()}
    return found


def results_in(path: Path) -> dict[str, bytes]:
    """Files that a run is asked for, and what its clients keep."""
    run = RunDirectory(path)
    kept = run.facts()["client_rounds"].items()
    files = [client_path(run.clients_path, int(client), number) for client, number in kept]
    files += [run.last_path, run.best_path, run.partition_path]
    return {file.name: file.read_bytes() for file in files}


def commands(path: Path, out: Path) -> dict[str, list[str]]:
    """Every command that reads a run; the last two go on with it where it is not finished."""
    settings = {name: value for name, value in BEGUN_WITH.items() if name != "method"}
    (path.parent / "settings.toml").write_text(toml.written(settings))
    asked = [f"--config={path.parent / 'settings.toml'}", "--methods=scaffold", "--filters=none"]
    report = ["--preset=smoke", "--report-only", "--quiet", f"--runs={path.parent}"]
    return {
        "plot": [str(path), "--out", str(out / "plot.png")],
        "diagnose": [str(path), "--out", str(out / "diagnosis"), "--quiet", "--noise-batches=0"],
        "list": [str(path.parent)],
        "reproduce": ["one", *report, f"--out={out / 'report'}"],
        "compare": [*asked, f"--out={path.parent}", "--quiet"],
        "resume": [str(path), "--quiet"],
    }


def reported(path: Path, out: Path) -> list[dict]:
    """Accuracies as the reports of ``compare`` and ``reproduce`` have them, if they were written.

    What is missing may be missing; what is there must be right.
    """
    found = [path.parent / "compare.json", out / "report" / "results.json"]
    tables = [json.loads(file.read_text()) for file in found if file.is_file()]
    rows = [row for table in tables for row in table.get("table", ())]
    rows += [run for table in tables if "sources" in table for run in table["runs"].values()]
    kinds = ("final", "best", "last 10", "client mean", "accuracy", "mean_last_10")
    return [{k: v for k, v in row.items() if any(kind in k for kind in kinds)} for row in rows]


@pytest.mark.parametrize(
    "count", [IN_THE_SUITE, pytest.param(CHANGES, marks=pytest.mark.exhaustive)]
)
def test_changed_files_of_a_finished_run(tmp_path, runs, count, capsys):
    truth, result = told(runs["finished"]), results_in(runs["finished"])
    path, out = tmp_path / "new" / NAME, tmp_path / "out"
    shutil.copytree(runs["finished"], path)
    about = path / "environment.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "cpu": "<script>"}))
    for name in ("reproduce", "compare"):
        assert cli.main([name, *commands(path, out)[name]]) == 0
    assert "script" in (out / "report" / "report.md").read_text()
    assert "<script" not in (out / "report" / "report.md").read_text()
    reports = reported(path, out)
    assert [len(report) for report in reports] == [4, 4]
    shutil.rmtree(path.parent)
    shutil.rmtree(out)
    noticed = 0
    for seed in range(count):
        shutil.copytree(runs["finished"], path)
        what = change(path, [runs["other"], runs["stopped"]], random.Random(seed))
        try:
            found = told(path)
        except RunError:
            noticed += 1
        else:
            assert found == truth, what
        for command, arguments in commands(path, out).items():
            if command == "diagnose" and seed % 10:
                continue  # it plays rounds
            code = cli.main([command, *arguments])
            assert code in (0, 2), (what, command)
            if command == "resume" and code == 0:
                assert results_in(path) == result, what
        assert all(report in reports for report in reported(path, out)), what
        shutil.rmtree(path.parent)
        shutil.rmtree(out, ignore_errors=True)
        assert "Traceback" not in capsys.readouterr().err
    assert noticed >= count / 4


@pytest.mark.parametrize(
    "count", [IN_THE_SUITE, pytest.param(CHANGES, marks=pytest.mark.exhaustive)]
)
def test_changed_files_of_an_interrupted_run(tmp_path, runs, count):
    """It is refused, or finished to the byte."""
    finished = RunDirectory(runs["finished"])
    result, rounds = results_in(finished.path), rounds_of(finished)
    refused = 0
    for seed in range(count):
        path = tmp_path / "new" / "run"
        shutil.copytree(runs["stopped"], path)
        what = change(path, [runs["other"]], random.Random(seed))
        refusal = ""
        try:
            training.resume(path)
        except RunError as error:
            refusal = str(error)
        if refusal:
            refused += 1
            changed = Path(what.rpartition(" ")[2])
            assert changed.name in refusal or changed.parent.name in refusal, what
        else:
            assert results_in(path) == result, what
            assert rounds_of(RunDirectory(path)) == rounds, what
        shutil.rmtree(tmp_path / "new")
    assert refused > count / 4
