"""Whose code runs, and who may touch a run."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import safetensors
from specgrad_fl import cli, executor, load_run, models, plots, pool, records, storage, training
from specgrad_fl.errors import RunError
from specgrad_fl.runs import FEDERATION_LOCK, RunDirectory

SMALL = ["--clients=3", "--active=2", "--rounds=1", "--workers=1", "--quiet"]
MODULE = """
from pathlib import Path

from torch import nn

Path("imported").touch()


def small(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""


@pytest.fixture(autouse=True)
def _quick_model(monkeypatch):
    source: dict = {}
    exec(MODULE.replace('Path("imported").touch()', ""), source)
    monkeypatch.setitem(models.MODELS, "quick", source["small"])


def test_a_run_is_locked_from_its_first_file_on(tmp_path, small):
    """Whoever resumed it before its first round would find its folder discarded."""
    said = []

    def intrude(sentence):
        said.append(sentence)
        with pytest.raises(RunError, match="another process is working on"):
            training.resume(tmp_path / "run")

    run = training.train(small(model="quick", rounds=1), tmp_path / "run", announce=intrude)
    assert len(said) == 2
    assert run.finished


def test_a_run_that_another_process_holds_is_not_discarded(tmp_path, small, monkeypatch):
    """A federation that fails to start leaves a folder that somebody else works on."""
    other = RunDirectory(tmp_path / "run")

    def fails(run, dataset, watch):
        raise RunError("the federation could not be started")

    monkeypatch.setattr(training, "_player", lambda config: fails)
    with pytest.raises(RunError, match="could not be started"):
        training.train(small(model="quick", engine="flower"), tmp_path / "run")
    assert not other.path.exists()
    lock = other.locked()

    def held(run, dataset, watch):
        lock.__enter__()
        raise RunError("the federation could not be started")

    monkeypatch.setattr(training, "_player", lambda config: held)
    with pytest.raises(RunError, match="could not be started"):
        training.train(small(model="quick", engine="flower"), tmp_path / "run")
    lock.__exit__(None, None, None)
    assert other.exists


def test_a_second_federation_is_refused_before_it_removes_anything(tmp_path, small):
    federation = pytest.importorskip("specgrad_fl.flower.federation")
    run = RunDirectory(tmp_path / "run")
    config = small(model="quick", engine="flower")
    dataset = training.begin(run, config)
    kept = [run.path / "flower" / name for name in ("data", "identity", "state")]
    for path in kept:
        path.mkdir(parents=True)
    other = RunDirectory(run.path)
    with other.locked(FEDERATION_LOCK), pytest.raises(RunError, match="another process"):
        training.resume(run.path)
    with other.locked(), pytest.raises(RunError, match="another process"):
        federation.play(run, dataset, lambda *_: None)
    assert all(path.exists() for path in kept)


@pytest.mark.parametrize("what", ["removed", "emptied"])
def test_a_folder_that_is_removed_meanwhile(tmp_path, small, what):
    """Emptied, it was filled with a run without a configuration, and called finished."""
    path = tmp_path / "run"

    def remove(record, config):
        shutil.rmtree(path)
        if what == "emptied":
            path.mkdir()

    with pytest.raises(RunError, match=r"was removed.* while .*; begin again in a new folder"):
        training.train(small(model="quick"), path, remove)
    assert not (path / "summary.json").exists()


def test_a_lock_may_be_nested_and_ends(tmp_path):
    run, other = RunDirectory(tmp_path), RunDirectory(tmp_path)
    with run.locked():
        with run.locked():
            pass
        with pytest.raises(RunError, match="another process"), other.locked():
            pass
    with other.locked():
        pass


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A run of one's own model, in a working directory that has its file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    Path("nets.py").write_text(MODULE, encoding="utf-8")
    assert cli.main(["train", "--model=nets:small", "--out=run", *SMALL]) == 0
    Path("imported").unlink()
    return tmp_path / "run"


HOSTILE = {
    "model": ("os:system", "model_options", 'command = "touch executed"'),
    "dataset": ("subprocess:check_output", "data_options", 'args = "touch executed"'),
    "method": ("subprocess:Popen", "options", 'args = "touch executed"'),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_strangers_folder_or_file_executes_nothing(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    name, table, option = HOSTILE[kind]
    text = f'{kind} = "{name}"\n[{table}]\n{option}\n'
    Path("run").mkdir()
    Path("run/config.toml").write_text(text)
    Path("run/partition.npz").write_bytes(b"x")
    Path(f"{name.partition(':')[0]}.py").write_text("")  # beside, but not what would be imported
    commands = (
        ["resume", "run"],
        ["diagnose", "run"],
        ["train", "--config=run/config.toml", "--out=new"],
        ["compare", "--config=run/config.toml", "--out=new"],
        ["flower", "shards", "--config=run/config.toml"],
    )
    for command in commands:
        assert cli.main(command) == 2
        assert f"names code to run, {kind} '{name}'; if you trust it" in capsys.readouterr().err
    if kind == "model":
        with pytest.raises(RunError, match="names code to run"):
            load_run("run").model()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["run", f"{name.partition(':')[0]}.py"]
    )


def test_code_that_the_command_names_again_runs(own, monkeypatch, capsys):
    (own / "summary.json").unlink()
    assert cli.main(["resume", "run"]) == 2
    assert "--allow nets:small" in capsys.readouterr().err
    assert cli.main(["resume", "run", "--allow=nets:small"]) == 0
    with pytest.raises(RunError, match=r"allow=\['nets:small'\] in Python"):
        load_run(own).model()
    assert load_run(own, allow=["nets:small"]).model()


def test_code_beside_a_configuration_file_runs(own):
    Path("experiment.toml").write_text('model = "nets:small"\n')
    assert cli.main(["train", "--config=experiment.toml", "--out=other", *SMALL]) == 0
    Path("folder").mkdir()
    Path("folder/experiment.toml").write_text('model = "nets:small"\n')
    command = ["train", "--config=folder/experiment.toml", "--out=third", *SMALL]
    assert cli.main(command) == 2
    assert cli.main([*command, "--model=nets:small"]) == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with held-out samples, whose best accuracy no record tells."""
    from federations import SMALL as SETTINGS
    from specgrad_fl.config import Config

    config = Config(**{**SETTINGS, "clients": 3, "active": 2, "validation": 0.2})
    path = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "curves", lambda *_: None)
        patch.setattr(plots, "clients", lambda *_: None)
        return training.train(config, path)


def edit_summary(name):
    def edit(run):
        found = json.loads(run.summary_path.read_text())
        found[name] = 0.987
        run.summary_path.write_text(json.dumps(found))

    return edit


def without_its_check(run):
    found = json.loads(run.summary_path.read_text())
    del found["check"]
    run.summary_path.write_text(json.dumps({**found, "best_accuracy": 0.987}))


def edit_lines(change):
    def edit(run):
        lines = run.metrics_path.read_text().splitlines(keepends=True)
        run.metrics_path.write_text("".join(change(lines)))

    return edit


def without_check(lines):
    record = json.loads(lines[1])
    del record["check"]
    record["train_loss"] = 0.5
    return [lines[0], json.dumps(record) + "\n", *lines[2:]]


def rename_digest(run):
    """Change weights, and hide their digest."""
    for path in (run.best_path, run.last_path):
        data = bytearray(path.read_bytes().replace(b"sha256", b"sha255"))
        data[-3] ^= 1
        path.write_bytes(data)


CHANGES = {
    "a result": edit_summary("final_accuracy"),
    "the best of a validation run": edit_summary("best_accuracy"),
    "the best without its check": without_its_check,
    "rounds cut off": edit_lines(lambda lines: lines[:-1]),
    "a round twice": edit_lines(lambda lines: [*lines, lines[-1]]),
    "a round of another run": edit_lines(lambda lines: [*lines, lines[-1].replace("3", "4")]),
    "a round without its check": edit_lines(without_check),
    "a hidden digest": rename_digest,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_run_is_noticed_by_every_reader(finished, tmp_path, name):
    shutil.copytree(finished.path, tmp_path / "run")
    for read in (lambda run: run.summary, lambda run: run.rows(), lambda run: run.model("last")):
        assert read(load_run(tmp_path / "run"))
    CHANGES[name](RunDirectory(tmp_path / "run"))
    readers = [lambda run: run.summary, lambda run: run.rows(), lambda run: run.model()]
    for read in readers:
        with pytest.raises(RunError, match=r"damaged|has changed|of the 3 rounds"):
            read(load_run(tmp_path / "run"))
    for command in (["resume"], ["plot", f"--out={tmp_path / 'x.png'}"], ["diagnose"]):
        assert cli.main([command[0], str(tmp_path / "run"), *command[1:]]) == 2


@pytest.mark.parametrize("name", ["rounds cut off", "a round without its check"])
def test_changed_rounds_of_an_interrupted_run_are_noticed(finished, tmp_path, name):
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(finished.path, run.path)
    run.summary_path.unlink()
    assert len(load_run(run.path).rows()) == 3
    CHANGES[name](run)
    with pytest.raises(RunError, match=r"has changed|of the 3 rounds"):
        load_run(run.path)
    for command in (["list"], ["plot", f"--out={tmp_path / 'x.png'}"]):
        place = tmp_path if command[0] == "list" else run.path
        assert cli.main([command[0], str(place), *command[1:]]) == 2


def test_a_partition_of_another_run_is_not_diagnosed(finished, tmp_path, capsys):
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(finished.path, run.path)
    training.divide(run.config().replace(seed=5), training.load_data(run.config())).save(
        run.partition_path
    )
    for folder, changed in ((finished.path, False), (run.path, True)):
        out = f"--out={tmp_path / 'out'}"
        assert cli.main(["diagnose", str(folder), out, "--quiet", "--rounds=0"]) == 2 * changed
    assert "partition.npz has changed" in capsys.readouterr().err


def test_a_folder_with_the_name_of_another_run_is_refused(finished, tmp_path, small):
    fleet = pytest.importorskip("specgrad_study.fleet")
    config = finished.config()
    job = fleet.Job.of(config.replace(clients=0, method="fedprox"), tmp_path)
    shutil.copytree(finished.path, job.path)
    with pytest.raises(RunError, match="method is 'fedavg', and 'fedprox' was asked for"):
        fleet.stored_outcome(job)
    (job.path / "summary.json").unlink()  # nor is it finished as the run that was asked for
    with pytest.raises(RunError, match="method is 'fedavg', and 'fedprox' was asked for"):
        fleet.play_one(job, lambda *_: None)
    same = fleet.Job.of(config.replace(eval_every=0), tmp_path)
    shutil.copytree(finished.path, same.path)
    assert fleet.stored_outcome(same).status == fleet.FINISHED


def test_values_beyond_all_bounds_are_refused_in_a_sentence(tmp_path, capsys):
    path = tmp_path / "experiment.toml"
    values = ["9" * 5000, "9" * 400, "[" * 5000 + "]" * 5000, "1979-05-27", "{a = {b = {}}}"]
    for value in values:
        path.write_text(f"lr = {value}\n")
        assert cli.main(["train", f"--config={path}", f"--out={tmp_path / 'run'}"]) == 2
        assert capsys.readouterr().err.startswith("specgrad-fl: ")


def test_names_of_folders(tmp_path, capsys):
    """Too long for the file system, or with control characters for the terminal."""
    for command in (["resume"], ["diagnose"], ["plot"], ["list"]):
        assert cli.main([*command, str(tmp_path / ("x" * 300))]) == 2
    assert "Traceback" not in capsys.readouterr().err
    folder = tmp_path / "runs" / "\x1b[2Jrun"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")
    assert cli.main(["list", str(folder.parent)]) == 0
    assert "\\x1b[2Jrun" in capsys.readouterr().out
    (folder / "config.toml").write_text('lr = "\x9b2J\n')
    assert cli.main(["list", str(folder.parent)]) == 2
    said = capsys.readouterr().err
    assert "\\x1b[2Jrun" in said
    assert said.strip().isprintable()


@pytest.mark.pictures
def test_names_that_mean_something_to_a_picture_or_a_spreadsheet(tmp_path, small, recwarn):
    """A picture ended a run after its last round, and no resume could finish it."""
    for name in (r"$\frac{$", "_run", "a\nb"):
        run = training.train(small(model="quick", rounds=1, clients=3), tmp_path / name)
        assert run.finished
        assert (run.path / "curves.png").stat().st_size > 0
    assert not [w for w in recwarn if "legend" in str(w.message)]
    rows = [{"method": '=HYPERLINK("x")', "@over": "+cmd", "gain": "-0.5", "loss": -1.5}]
    text = records.csv_text(rows)
    assert text == """method,'@over,gain,loss\n"'=HYPERLINK(""x"")",'+cmd,-0.5,-1.5\n"""


@pytest.mark.parametrize("again", [False, True])
def test_a_stopped_worker_is_ended(again, monkeypatch):
    """It sees no signal but the last; also where Ctrl-C comes again while it is waited for."""
    made = pool.Pool("specgrad_fl.executor", 1, 1)
    made.start()
    (child,) = made._processes
    os.kill(child.pid, signal.SIGSTOP)
    wait = child.wait

    def interrupted(*timeout):
        monkeypatch.setattr(child, "wait", wait)
        raise KeyboardInterrupt

    if again:
        monkeypatch.setattr(child, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt) if again else contextlib.nullcontext():
        made.close()
    assert child.returncode == -signal.SIGKILL


def test_memory_of_a_run_that_was_killed_is_given_back(tmp_path):
    """While workers start, their arrays have names."""
    dead, living = (tmp_path / f"{executor.SCRATCH}{name}" for name in ("dead", "living"))
    for folder in (dead, living):
        folder.mkdir()
        executor._claimed(folder).close() if folder == dead else None
    claim = executor._claimed(living)
    executor._remove_abandoned(tmp_path)
    assert (dead.exists(), living.exists()) == (False, True)
    claim.close()


def test_names_reach_the_disk(tmp_path, monkeypatch):
    """After a rename alone, a power cut may leave the old file."""
    done = []
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def renamed(source, target):
        done.append("renamed")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    storage.write_text(tmp_path / "file", "text")
    assert done == [f"file{storage.TEMPORARY}", "renamed", tmp_path.name]


@pytest.mark.parametrize("name", ["config.toml", "last.safetensors", "metrics.jsonl", "lock"])
def test_another_users_run_is_refused_in_a_sentence(finished, tmp_path, monkeypatch, capsys, name):
    """Opening is patched: root, as in a container, may read everything."""
    shutil.copytree(finished.path, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()

    def refusing(function):
        def opened(path, *args, **kwargs):
            if str(path) == str(tmp_path / "run" / name):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return function(path, *args, **kwargs)

        return opened

    for owner, attribute in (
        (io, "open"),
        (os, "open"),
        (builtins, "open"),
        (safetensors, "safe_open"),
    ):
        monkeypatch.setattr(owner, attribute, refusing(getattr(owner, attribute)))
    assert cli.main(["resume", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert str(tmp_path / "run") in said
    assert "damaged" not in said


def test_the_earlier_checkpoint_of_another_run_is_refused(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    config = finished.config().replace(seed=1, rounds=2)
    other = training.train(config, tmp_path / "other")
    assert load_run(tmp_path / "run").model("previous")
    shutil.copy(other.previous_path, tmp_path / "run" / "previous.safetensors")
    with pytest.raises(RunError, match="a checkpoint of another run"):
        load_run(tmp_path / "run").model("previous")
