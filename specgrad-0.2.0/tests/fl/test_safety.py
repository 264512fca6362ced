"""Nothing of a user's is lost, and no changed file of a run goes unnoticed."""

from __future__ import annotations

import re
import shutil
import stat
from pathlib import Path

import pytest
from specgrad_fl import cli, load_run, storage, training
from specgrad_fl.errors import RunError
from specgrad_fl.records import essence
from specgrad_fl.runs import RunDirectory


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "names",
    [
        ("notes.tmp",),
        ("clients/list.txt",),
        ("summary.json", "curves.png", "best.safetensors"),
        ("metrics.jsonl",),
        ("lock",),
        (".hidden",),
    ],
)
def test_a_folder_with_files_is_left_alone(tmp_path, small, names):
    folder = tmp_path / "mine"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    before = contents(folder)
    with pytest.raises(RunError, match=r"is not empty: it holds .*; choose a new folder"):
        training.train(small(rounds=1), folder)
    assert contents(folder) == before


def stopped(config, path, rounds=2) -> RunDirectory:
    """A run that was interrupted after some rounds."""

    def watch(record, _):
        if record["round"] == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(config, path, watch)
    return RunDirectory(path)


def test_a_run_removes_only_names_it_made(tmp_path, small):
    run = stopped(small(rounds=3, method="feddyn"), tmp_path / "run")
    mine = ["notes.tmp", "clients/notes.txt", "clients/000001.safetensors"]
    for name in mine:
        (run.path / name).write_text("mine")
    (run.path / f"half{storage.TEMPORARY}").write_text("left by a crash")
    training.resume(run.path)
    assert [(run.path / name).read_text() for name in mine] == ["mine"] * 3
    assert not (run.path / f"half{storage.TEMPORARY}").exists()


def test_runs_are_private(tmp_path, small):
    (tmp_path / "empty").mkdir(mode=0o755)
    for name in ("new", "empty"):
        run = training.train(small(rounds=1, method="feddyn"), tmp_path / name)
        for path in [run.path, *run.path.rglob("*")]:
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path


def flip(path: Path, place: int, mask: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= mask
    path.write_bytes(data)


def copy_of(run: RunDirectory, path: Path) -> RunDirectory:
    shutil.copytree(run.path, path)
    return RunDirectory(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run, and the same interrupted before its last round."""
    from federations import SMALL
    from specgrad_fl.config import Config

    config = Config(**{**SMALL, "clients": 3, "active": 2, "method": "scaffold"})
    folder = tmp_path_factory.mktemp("runs")
    return training.train(config, folder / "done"), stopped(config, folder / "stopped")


def test_a_setting_that_became_nonsense_is_named_with_its_file(runs, tmp_path):
    run = copy_of(runs[1], tmp_path / "run")
    text = run.config_path.read_text("utf-8")
    run.config_path.write_text(text.replace('optimizer = "sgd"', 'optimizer = "sge"'), "utf-8")
    with pytest.raises(RunError, match=r"config\.toml: optimizer is 'sge'; did you mean 'sgd'"):
        training.resume(run.path)


@pytest.mark.parametrize("name", ["last.safetensors", "clients", "partition.npz", "metrics.jsonl"])
def test_a_changed_file_is_named_with_the_way_back(runs, tmp_path, name):
    run = copy_of(runs[1], tmp_path / "run")
    path = run.path / name
    if path.is_dir():
        path = sorted(path.iterdir())[0]
    if name == "partition.npz":
        other = training.prepare(run.config().replace(seed=5))[2]
        other.save(path)
    elif name == "metrics.jsonl":
        path.write_text(path.read_text().replace('"train_loss": ', '"train_loss": 1'))
    else:
        flip(path, path.stat().st_size - 2, 1)
    with pytest.raises(RunError, match=f"{path.name}.*(has changed|damaged).*restore it"):
        training.resume(run.path)


def test_other_files_of_other_runs_are_noticed(runs, tmp_path, small):
    """The best weights and the normalisation of another run: whole files, but not this run's."""
    other = training.train(small(rounds=1, clients=3, active=2, seed=5), tmp_path / "other")
    for source, resumed in ((runs[0], "done"), (runs[1], "stopped")):
        run = copy_of(source, tmp_path / resumed)
        shutil.copy(other.best_path, run.best_path)
        if source is runs[1]:  # no round that is left is a better one, and writes it again
            state = run.load_state(run.config(), run.facts()["fingerprint"])
            state.best_accuracy = 2.0
            run.save_state(state, run.config())
        with pytest.raises(RunError, match=r"best\.safetensors has changed since it was written"):
            training.resume(run.path)
    run = copy_of(runs[0], tmp_path / "inputs")
    text = run.inputs_path.read_text()
    run.inputs_path.write_text(re.sub(r'("mean": \[\s*0\.)', r"\g<1>9", text))
    assert run.inputs_path.read_text() != text
    for use in (training.resume, lambda path: load_run(path).model()):
        with pytest.raises(RunError, match=r"inputs\.json has changed since it was written"):
            use(run.path)


@pytest.mark.pictures
def test_pictures_are_drawn_over_pictures_alone(runs, tmp_path):
    mine = tmp_path / "mine.png"
    for _ in range(2):  # the second time over its own
        assert cli.main(["plot", str(runs[0].path), f"--out={mine}"]) == 0
    before = contents(runs[0].path)
    for taken in ("curves.png", "summary.json", "new.png"):
        assert cli.main(["plot", str(runs[0].path), f"--out={runs[0].path / taken}"]) == 2
    assert contents(runs[0].path) == before
    mine.write_bytes(b"\x89PNG of somebody else")
    assert cli.main(["plot", str(runs[0].path), f"--out={mine}"]) == 2
    assert mine.read_bytes() == b"\x89PNG of somebody else"


def test_a_missing_checkpoint_is_no_new_beginning(runs, tmp_path):
    run = copy_of(runs[1], tmp_path / "run")
    run.last_path.unlink()
    with pytest.raises(RunError, match=r"last\.safetensors is missing; restore it"):
        training.resume(run.path)


def test_another_summary_is_noticed(runs, tmp_path):
    run = copy_of(runs[0], tmp_path / "run")
    text = run.summary_path.read_text()
    run.summary_path.write_text(text.replace('"final_accuracy": 0.', '"final_accuracy": 0.9'))
    with pytest.raises(RunError, match="delete it and resume the run to write it again"):
        training.resume(run.path)
    run.summary_path.unlink()
    assert training.resume(run.path).summary()["final_accuracy"] == float(
        runs[0].summary()["final_accuracy"]
    )


def test_runs_without_digests_go_on(runs, tmp_path, monkeypatch):
    """A run of an earlier version has none, and is taken as it is."""
    from specgrad_fl import storage

    run = copy_of(runs[1], tmp_path / "run")
    tensors, facts = storage.load_tensors(run.last_path)
    for name in ("client_digests", "metrics", "partition"):
        facts.pop(name)
    monkeypatch.setattr(storage, "digest", lambda tensors, facts: "")
    storage.save_tensors(run.last_path, tensors, facts)
    monkeypatch.undo()
    lines = run.config_path.read_text().splitlines(keepends=True)
    run.config_path.write_text("".join(lines[1:]))
    assert essence(training.resume(run.path).records()[-1]) == essence(runs[0].records()[-1])


def test_a_refused_run_leaves_no_folder(tmp_path, small, monkeypatch):
    (tmp_path / "odd.py").write_text(
        "from specgrad_fl.methods import Method\n"
        "class Odd(Method):\n"
        "    def finish(self, local):\n"
        "        raise ValueError('no')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((RunError, ValueError)):
        training.train(small(method="odd:Odd"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.pictures
def test_a_resumed_run_gets_its_heat_map(tmp_path, small):
    run = stopped(small(rounds=3), tmp_path / "run")
    for name in ("partition.png", "environment.json"):
        (run.path / name).unlink()
    training.resume(run.path)
    assert (run.path / "partition.png").stat().st_size > 0
    assert (run.path / "environment.json").stat().st_size > 0
