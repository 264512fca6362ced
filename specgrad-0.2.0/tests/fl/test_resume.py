"""A run that is killed at any moment and resumed ends like one that never was."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from federations import files_of, rounds_of
from representatives import only
from specgrad_fl import executor, storage, training
from specgrad_fl.config import Config
from specgrad_fl.errors import RunError
from specgrad_fl.methods import METHODS
from specgrad_fl.progress import silent
from specgrad_fl.runs import RunDirectory

# of every method; `make test-kills` takes more
TRIALS = 2 if "SPECGRAD_KILLS" not in os.environ else 10


def assert_same(run: RunDirectory, reference: RunDirectory) -> None:
    assert rounds_of(run) == rounds_of(reference)
    ours, theirs = files_of(run), files_of(reference)
    assert list(ours) == list(theirs)
    for name in theirs:
        assert ours[name] == theirs[name], name
    assert not list(run.path.glob(f"*{storage.TEMPORARY}"))


def finish(config: Config, path: Path, watch=silent) -> RunDirectory:
    """Continue as a user would after a crash."""
    run = RunDirectory(path)
    return training.resume(path, watch) if run.exists else training.train(config, path, watch)


def in_child(work: Callable[[], object]) -> int:
    """Do something in a forked process; its exit code, negative for the signal that ended it."""
    return ended(forked(work))


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forked(work: Callable[[], object]) -> int:
    torch.set_num_threads(1)
    child = os.fork()
    if child == 0:
        for stream in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        try:
            work()
            os._exit(0)
        except RunError:
            os._exit(2)
        except BaseException:
            os._exit(70)
    return child


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train_and_die_at(config: Config, path: Path, operation: int) -> Callable[[], None]:
    """Train, and be killed at the n-th file operation, in the middle of a write if it is one."""

    def work() -> None:
        count = 0

        def dying(function: Callable, torn: Callable | None = None) -> Callable:
            def wrapped(*args, **kwargs):
                nonlocal count
                count += 1
                if count == operation:
                    if torn is not None:
                        torn(*args)
                    die()
                return function(*args, **kwargs)

            return wrapped

        write_bytes, write_text = Path.write_bytes, Path.write_text
        os.replace = dying(os.replace)
        os.fsync = dying(os.fsync)
        Path.unlink = dying(Path.unlink)
        Path.write_bytes = dying(write_bytes, lambda p, b: write_bytes(p, b[: len(b) // 2]))
        Path.write_text = dying(
            write_text, lambda p, text, **kwargs: write_text(p, text[: len(text) // 2])
        )
        training.train(config, path)

    return work


@pytest.mark.parametrize("method", only(["scaffold", "fedawa"], METHODS))
def test_killed_at_random_file_operations(tmp_path, small, method, trained_once):
    config = small(method=method, filter="fft", rounds=3, clients=8, active=2)
    reference = trained_once(config)
    draw = random.Random(METHODS[method].name)
    killed = 0
    for trial in range(TRIALS):
        path = tmp_path / f"trial{trial}"
        code = in_child(train_and_die_at(config, path, draw.randint(1, 45)))
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
        assert_same(finish(config, path), reference)
    assert killed >= TRIALS // 2


def interrupted(config: Config, path: Path, rounds: int) -> RunDirectory:
    """A run that was killed after some rounds."""

    def watch(record, config):
        if record["round"] == rounds:
            die()

    assert in_child(lambda: training.train(config, path, watch)) == -signal.SIGKILL
    return RunDirectory(path)


@pytest.mark.parametrize("method", only(["feddyn"], ["fedavg", "feddyn"]))
def test_ctrl_c_keeps_rounds_that_no_checkpoint_was_due_for(
    tmp_path, small, monkeypatch, method, trained_once
):
    config = small(rounds=4, method=method, checkpoint_every=100)
    reference = trained_once(config)
    in_process = executor.Executor
    train = in_process.train

    def interrupting(self, round_number, *rest):
        if round_number == 3:
            raise KeyboardInterrupt
        return train(self, round_number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(in_process, "train", interrupting)
        with pytest.raises(KeyboardInterrupt):
            training.train(config, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    assert run.load_rounds() == 3
    assert_same(training.resume(run.path), reference)


def test_ctrl_c_while_a_round_is_aggregated_keeps_the_checkpoint(
    tmp_path, small, monkeypatch, trained_once
):
    config = small(rounds=3, method="feddyn")
    reference = trained_once(config)

    def interrupting(self, round, server):
        if round.number == 1:
            server["h"] += 1
            raise KeyboardInterrupt
        return aggregate(self, round, server)

    aggregate = METHODS["feddyn"].aggregate
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["feddyn"], "aggregate", interrupting)
        with pytest.raises(KeyboardInterrupt):
            training.train(config, tmp_path / "run")
    assert_same(training.resume(tmp_path / "run"), reference)


def test_states_of_more_than_ten_clients(tmp_path, small, trained_once):
    """Sorted as names, 10 comes before 2, and a digest of the facts sees their order."""
    config = small(rounds=2, method="scaffold", clients=12, active=12)
    run = interrupted(config, tmp_path / "run", 1)
    assert len(run.facts()["client_rounds"]) == 12
    assert_same(training.resume(run.path), trained_once(config))


def test_states_of_clients_do_not_follow_to_another_engine(tmp_path, small):
    run = interrupted(small(rounds=3, method="scaffold"), tmp_path / "run", 1)
    with pytest.raises(RunError, match="resume with --engine local"):
        training.resume(run.path, changes={"engine": "flower"})


def test_torn_or_unconfirmed_last_line(tmp_path, small, trained_once):
    config = small(rounds=4)
    begun = interrupted(config, tmp_path / "begun", 2)
    for tail in (b'{"round": 3, "lr": 0.0', b"\x00\xff", b'{"round": 3, "train_loss": 99.0}\n'):
        run = RunDirectory(shutil.copytree(begun.path, tmp_path / "torn"))
        with open(run.metrics_path, "ab") as file:
            file.write(tail)
        assert_same(training.resume(run.path), trained_once(config))
        shutil.rmtree(run.path)


def test_damage_elsewhere_in_the_metrics_is_refused(tmp_path, small):
    run = interrupted(small(rounds=4), tmp_path / "run", 2)
    lines = run.metrics_path.read_text().splitlines(keepends=True)
    for text in ("{oops\n" + lines[1], lines[1]):  # and one that begins with the second round
        run.metrics_path.write_text(text)
        with pytest.raises(RunError, match=r"line 1 of .* is damaged"):
            training.resume(run.path)
    run.metrics_path.write_text(lines[0])
    with pytest.raises(RunError, match="1 of the 2 rounds"):
        training.resume(run.path)


@pytest.mark.parametrize(("every", "kept"), [(1, [1, 2, 3]), (4, [1, 2])])
def test_full_disk(tmp_path, small, every, kept, trained_once):
    """Files may not grow beyond a limit: a checkpoint, or a line, breaks off in the middle."""
    config = small(method="scaffold", rounds=4, checkpoint_every=every)
    run = RunDirectory(tmp_path / "full")

    def fill(record, config):
        if record["round"] == 2:
            most = 100_000 if every == 1 else run.metrics_path.stat().st_size + 40
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    assert in_child(lambda: training.train(config, run.path, fill)) == 2
    assert [r["round"] for r in run.records()] == kept
    assert_same(training.resume(run.path), trained_once(config))


@pytest.mark.parametrize("limit", only([0], [0, 1, 1024]))
def test_memory_limit_does_not_change_the_result(tmp_path, small, limit, trained_once):
    config = small(method="scaffold", rounds=4)
    reference = trained_once(config)
    run = training.train(config.replace(state_ram_mib=limit, checkpoint_every=3), tmp_path / "run")
    assert rounds_of(run) == rounds_of(reference)
    assert (run.last_path).read_bytes() == reference.last_path.read_bytes()


def test_state_beyond_the_limit_is_on_disk_alone(play):
    engine_ = play(method="feddyn", state_ram_mib=0, rounds=2)
    assert not engine_.states._recent
    seen = {k for r in engine_.records for k in r["clients"]}
    assert {int(p.name[:6]) for p in engine_.run.clients_path.iterdir()} == seen


def test_refuses_another_configuration(tmp_path, small):
    run = interrupted(small(rounds=3), tmp_path / "run", 1)
    with pytest.raises(RunError, match=r"lr is 0\.1 in this run and 0\.2 was asked for"):
        training.resume(run.path, changes={"lr": 0.2})
    text = run.config_path.read_text()
    run.config_path.write_text(text.replace("lr = 0.1\n", "lr = 0.2\n"))
    with pytest.raises(RunError, match=r"config\.toml has changed since the run began"):
        training.resume(run.path)


def test_refuses_a_wrong_or_damaged_checkpoint(tmp_path, small):
    run = interrupted(small(rounds=3), tmp_path / "run", 1)
    other = training.train(small(rounds=1, method="scaffold"), tmp_path / "other")
    good = run.last_path.read_bytes()
    run.last_path.write_bytes(other.last_path.read_bytes())
    with pytest.raises(RunError, match="belongs to another configuration"):
        training.resume(run.path)
    run.last_path.write_bytes(good[: len(good) // 2])
    with pytest.raises(RunError, match="not a checkpoint of this trainer or is damaged"):
        training.resume(run.path)
    run.last_path.write_bytes(good)
    assert training.resume(run.path).finished


def test_refuses_a_missing_client_state(tmp_path, small):
    run = interrupted(small(rounds=3, method="feddyn"), tmp_path / "run", 1)
    next(run.clients_path.iterdir()).unlink()
    with pytest.raises(RunError, match=r"clients/.* is missing"):
        training.resume(run.path)


def test_of_several_resumes_at_once_one_goes_on(tmp_path, small, trained_once):
    """The others are refused, or find the run finished."""
    config = small(rounds=3)
    run = interrupted(config, tmp_path / "run", 1)
    with run.locked(), pytest.raises(RunError, match="another process is working on"):
        training.resume(run.path)
    children = [forked(lambda: training.resume(run.path)) for _ in range(3)]
    codes = sorted(map(ended, children))
    assert codes[0] == 0
    assert set(codes) <= {0, 2}
    assert_same(run, trained_once(config))


def test_nan_stops_the_run_with_the_last_good_checkpoint(tmp_path, small):
    config = small(rounds=9, lr_decay=1e4, clip=0.0)
    with pytest.raises(RunError, match=r"round \d: loss or weights of all 3 clients"):
        training.train(config, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    tensors, facts = storage.load_tensors(run.last_path)
    assert facts["rounds"] == len(run.records()) >= 1
    for name, tensor in tensors.items():
        assert torch.isfinite(tensor).all(), name


def test_a_command_with_workers_is_killed_and_resumed(tmp_path, small, trained_once):
    config = small(rounds=8, clients=8, active=2, method="feddyn")
    reference = trained_once(config)
    path = tmp_path / "run"
    flags = [
        f"--{name.replace('_', '-')}={getattr(config, name)}"
        for name in ("rounds", "clients", "active", "method", "batch_size", "eval_every")
    ]
    command = [sys.executable, "-m", "specgrad_fl.cli", "train", "--json", *flags]
    started = subprocess.Popen(
        [*command, "--workers=2", f"--out={path}"],
        stdout=subprocess.PIPE,
    )
    assert started.stdout is not None
    first = json.loads(started.stdout.readline())
    assert first["round"] == 1
    workers = _children(started.pid)
    assert len(workers) == 2
    started.kill()
    started.wait()
    started.stdout.close()
    while any(_alive(pid) for pid in workers):
        time.sleep(0.05)
    run = training.resume(path, changes={"workers": 2})
    assert run.summary()["rounds"] == 8
    assert rounds_of(run) == rounds_of(reference)
    assert run.last_path.read_bytes() == reference.last_path.read_bytes()


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    if not found.exists():
        pytest.skip("needs the process tree of Linux")
    return [int(child) for child in found.read_text().split()]


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
