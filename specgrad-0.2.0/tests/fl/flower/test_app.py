"""The experiment as a Flower app: what is written is what is read, and runs are taken up again."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from specgrad_fl import Config, cli
from specgrad_fl.config import FIELDS
from specgrad_fl.errors import RunError
from specgrad_fl.flower import app, server_app
from specgrad_fl.runs import RunDirectory

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPERIMENT = """
clients = 2
active = 2
rounds = 2
method = "fedprox"
filter = "fft"
[options]
mu = 0.02
"""


def settings_in(folder):
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    return project["tool"]["flwr"]["app"]["config"]


def test_every_setting_is_declared_and_comes_back(tmp_path):
    config = Config(
        clients=3, lr=0.1 + 0.2, options={"mu": 0.02}, augment=False, data_options={"a": ["x", "ü"]}
    )
    app.write(tmp_path / "app", config, "somewhere")
    declared = settings_in(tmp_path / "app")
    assert set(declared) == {"out", "specgrad", *FIELDS} - app.COMMAND_KEYS
    assert app.read(declared) == (config.replace(engine="flower"), "somewhere")


def test_the_command_writes_a_folder_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    command = ["flower", "app", "--config=experiment.toml", "--rounds=3", "--out=made"]
    assert cli.main(command) == 0
    assert "flwr run made FEDERATION" in capsys.readouterr().out
    config, out = app.read(settings_in(tmp_path / "made"))
    assert (config.rounds, config.method, config.options, out) == (3, "fedprox", {"mu": 0.02}, "")
    assert cli.main(command) == 2
    assert "made/pyproject.toml exists; choose another --out" in capsys.readouterr().err
    assert cli.main([*command[:-1], "--out=other", "--active=9"]) == 2
    assert "active is 9, and there are 2 clients" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_run_is_begun_continued_and_made_longer(federation, tmp_path, monkeypatch, capsys):
    made = federation(rounds=1)
    monkeypatch.chdir(tmp_path)

    def submit(number=7, **changes):
        app.write(tmp_path / f"app{len(list(tmp_path.glob('app*')))}", made.run.config())
        newest = max(tmp_path.glob("app*"), key=lambda p: p.name)
        settings = {**settings_in(newest), **changes}
        server_app.main(made.grid, Context(number, 0, {}, RecordDict(), settings))

    submit()
    run = RunDirectory(tmp_path / "runs" / "7")
    assert run.finished
    assert run.path.stat().st_mode & 0o077 == 0
    submit(8, out="runs/7")
    assert "finished all its rounds already" in capsys.readouterr().out
    with pytest.raises(RunError, match=r"lr is 0.1 in this run and 0.2 was asked for"):
        submit(9, out="runs/7", lr=0.2)
    submit(10, out="runs/7", rounds=2)
    assert len(run.records()) == 2
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["7"]


def test_nothing_but_flowers_public_interface_is_imported():
    found = set()
    for path in Path(app.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {name for name in names if name.partition(".")[0] == "flwr"}
    assert found == {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
