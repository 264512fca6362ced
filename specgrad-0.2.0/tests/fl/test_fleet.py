"""Many runs: in one process or several, interrupted, diverging, contended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from specgrad_fl import cli
from specgrad_fl.errors import RunError
from specgrad_fl.runs import RunDirectory
from specgrad_study import fleet
from specgrad_study.fleet import DIVERGED, FINISHED, REFUSED, Job


def ignore(job, record):
    """A listener that says nothing."""


@pytest.fixture
def jobs(small, tmp_path):
    """Three small runs."""
    return [Job.of(small(seed=seed, rounds=1), tmp_path / "runs") for seed in range(3)]


@pytest.mark.interpreters
def test_processes_do_what_one_does(small, tmp_path, monkeypatch):
    """Also with a method that prints, which is no answer."""
    (tmp_path / "noisy.py").write_text(
        "from specgrad_fl.methods import Method\n"
        "class Noisy(Method):\n"
        "    def finish(self, local):\n"
        "        print('a word in between')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    configs = [small(method="noisy:Noisy", rounds=2, seed=seed) for seed in range(3)]
    jobs = [Job.of(config, tmp_path / "runs") for config in configs]
    heard = []
    outcomes = fleet.play(jobs, 2, lambda job, record: heard.append((job.path, record["round"])))
    assert [o.status for o in outcomes] == [FINISHED] * 3
    assert sorted(heard) == sorted((job.path, r) for job in jobs for r in (1, 2))
    alone = Job(jobs[1].config, tmp_path / "alone")
    assert fleet.play([alone], 1, ignore)[0].status == FINISHED
    one, two = (load_file(path / "last.safetensors") for path in (alone.path, jobs[1].path))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_finished_runs_are_not_played_again(jobs):
    fleet.play(jobs, 1, ignore)
    heard = []
    outcomes = fleet.play(jobs, 1, lambda job, record: heard.append(job))
    assert [o.status for o in outcomes] == [FINISHED] * 3
    assert heard == []


@pytest.mark.parametrize("processes", [1, 2])
def test_divergence_is_remembered_and_ends_nothing_else(small, tmp_path, processes):
    wild = Job.of(small(lr=1e30, clip=0.0, rounds=2), tmp_path)
    tame = Job.of(small(rounds=1), tmp_path)
    first = fleet.play([wild, tame], processes, ignore)
    assert [o.status for o in first] == [DIVERGED, FINISHED]
    assert "no longer finite" in first[0].reason or "not finite" in first[0].reason
    heard = []
    second = fleet.play([wild], 1, lambda job, record: heard.append(job))
    assert second[0].status == DIVERGED
    assert second[0].reason == first[0].reason
    assert heard == []


def test_a_run_that_another_process_plays_is_refused(jobs):
    run = RunDirectory(jobs[0].path)
    with run.locked():
        outcomes = fleet.play(jobs[:2], 1, ignore)
    assert [o.status for o in outcomes] == [REFUSED, FINISHED]
    assert "another process" in outcomes[0].reason


@pytest.mark.slow
def test_a_killed_process_is_explained(small, tmp_path):
    job = Job.of(small(rounds=12), tmp_path)

    def kill_the_player(played, record):
        for pid in children():
            os.kill(pid, signal.SIGKILL)

    other = Job.of(small(rounds=1, seed=9), tmp_path)
    with pytest.raises(RunError, match=r"ended with code -9; its\s+last round is stored"):
        fleet.play([job, other], 2, kill_the_player)
    again = fleet.play([Job(job.config.replace(workers=1), job.path)], 1, ignore)
    assert again[0].status == FINISHED
    assert len(RunDirectory(job.path).records()) == 12


def children() -> list[int]:
    """Copies of this process, which play runs."""
    own = Path(f"/proc/{os.getpid()}/task")
    if not own.is_dir():
        pytest.skip("needs the process tree of Linux")
    found = " ".join(path.read_text() for path in own.glob("*/children")).split()
    return [int(pid) for pid in found if command_line(pid) == command_line(os.getpid())]


def command_line(pid: str | int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


@pytest.mark.exhaustive
def test_an_interrupt_loses_nothing(tmp_path, capsys):
    """Ctrl-C during `reproduce` with two jobs; the same command finishes."""
    command = ["reproduce", "supplement", "--preset=smoke", "--jobs=2", f"--runs={tmp_path}"]
    assert cli.main([*command, "--dry-run"]) == 0
    missing = int(capsys.readouterr().out.split()[0])
    process = subprocess.Popen(
        [sys.executable, "-m", "specgrad_fl.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell that runs the tests in the background has them ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not list(tmp_path.glob("*/config.toml")) and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "the same command goes on" in errors
    assert not list(tmp_path.glob("report/*"))
    assert cli.main(command) == 0
    assert len(list(tmp_path.glob("*/summary.json"))) == missing
    assert (tmp_path / "report" / "report.html").is_file()
