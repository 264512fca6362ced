"""SuperLink, SuperNodes and server as real processes on loopback, with TLS and node keys."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from federations import result_of
from specgrad_fl import cli, engine, training
from specgrad_fl.flower.processes import Process, answers, environment, free_port
from specgrad_fl.flower.security import make_keys
from specgrad_fl.flower.superlink import SuperLink
from specgrad_fl.runs import RunDirectory

pytestmark = pytest.mark.slow

# generous: other tests and other people may be using the machine
PATIENCE = 600
COMMAND = [sys.executable, "-m", "specgrad_fl.cli"]
SMALL = ["--clients=3", "--active=3", "--rounds=2", "--batch-size=64", "--eval-every=1"]
MEASURED = ("time", "seconds", "filter_share", "memory_mib", "wire_bytes", "repeats")


def essence(run: RunDirectory) -> list[dict]:
    return [{k: v for k, v in r.items() if k not in MEASURED} for r in run.records()]


def waited(condition, process=None):
    """Wait until something becomes true, while a process runs."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)
    return found


def processes(*words: str) -> list[int]:
    """The processes whose command line has all of these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words) and "specgrad_fl.flower.guard" not in line:
            found.append(int(path.parent.name))
    return found


def told_of(folder: Path, *words: str) -> list[int]:
    """Those of them whose environment names a folder; strangers' cannot be read."""
    found = []
    for number in processes(*words):
        try:
            environment = Path(f"/proc/{number}/environ").read_text(errors="replace")
        except OSError:  # of another user, or just ended
            continue
        if str(folder) in environment:
            found.append(number)
    return found


@pytest.fixture
def start(tmp_path):
    """Starts a command of ours in the temporary folder, and ends it with the test."""
    started: list[subprocess.Popen] = []

    def start(*arguments: str) -> subprocess.Popen:
        started.append(
            subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=tmp_path,
                env={**environment(tmp_path / "home"), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait()


def finished(process: subprocess.Popen) -> tuple[int, str]:
    """Exit code and what was said on standard error."""
    _, error = process.communicate(timeout=PATIENCE)
    return process.returncode, error


def test_two_rounds_on_three_nodes(tmp_path, small, start):
    """Bit for bit what one process computes; afterwards nothing is left running."""
    settings = ["--method=scaffold", "--filter=fft", "--seed=3"]
    flower = start("train", "--engine=flower", "--out=run", *SMALL, *settings)
    here = training.train(
        small(clients=3, active=3, rounds=2, method="scaffold", filter="fft", seed=3),
        tmp_path / "here",
    )
    assert finished(flower) == (0, "")
    there = RunDirectory(tmp_path / "run")
    assert essence(there) == essence(here)
    assert result_of(there) == result_of(here)
    for record in there.records():
        for way in ("down", "up"):
            assert record["wire_bytes"][way] == pytest.approx(record[f"bytes_{way}"], rel=0.01)
    waited(lambda: not processes(str(tmp_path)))
    assert there.path.stat().st_mode & 0o077 == 0  # clients' samples are below it
    assert not (there.path / "flower" / "keys").exists()


def test_a_node_killed_in_a_round_is_left_out(tmp_path, start):
    flower = start(
        "train", "--engine=flower", "--out=run", *SMALL, "--clients=2", "--active=2", "--nodes=2",
        "--epochs=8", "--client-timeout=30",
    )  # fmt: skip
    log = tmp_path / "run" / "flower" / "logs" / "node-1.txt"
    waited(lambda: log.is_file() and log.read_text().count("Receiving: train") == 2, flower)
    (node,) = processes("specgrad_fl.flower.quick", str(tmp_path), "node-1")
    os.kill(node, signal.SIGKILL)
    assert finished(flower) == (0, "")
    first, second = RunDirectory(tmp_path / "run").records()
    assert first["clients"] == [0, 1]
    assert second["clients"] == [0]
    assert second["left_out"] == [1]
    assert second["reasons"] == ["client 1: no answer within 30 s"]


def test_a_killed_server_resumes_with_its_clients_states(tmp_path, small, start):
    settings = ["--method=feddyn", "--filter=lap", *SMALL, "--rounds=4", "--nodes=2"]
    flower = start("train", "--engine=flower", "--out=run", *settings)
    run = RunDirectory(tmp_path / "run")
    waited(lambda: len(run.records()) >= 1, flower)
    # the server has this environment; its command line does not tell whose it is
    for server in told_of(tmp_path, "flwr-serverapp"):
        os.kill(server, signal.SIGKILL)
    code, error = finished(flower)
    assert code == 2
    assert "the server ended before the run did" in error
    assert "specgrad-fl resume run" in error
    assert 1 <= len(run.records()) < 4
    assert finished(start("resume", "run", "--nodes=1")) == (0, "")
    here = training.train(
        small(clients=3, active=3, rounds=4, method="feddyn", filter="lap"), tmp_path / "here"
    )
    assert essence(run) == essence(here)
    assert result_of(run) == result_of(here)


def test_joining_a_superlink_and_refusing_a_wrong_key(tmp_path, start):
    """Two nodes with folders of their own; a third, whose key nobody registered, is refused."""
    experiment = ["--clients=2", "--active=2", "--rounds=1", "--batch-size=64", "--nodes=2"]
    assert cli.main(["flower", "shards", *experiment, f"--out={tmp_path / 'shards'}"]) == 0
    keys = make_keys(tmp_path / "keys", ["127.0.0.1"], ["node-0", "node-1"])
    stranger = make_keys(tmp_path / "strangers", ["127.0.0.1"], ["node-0"]).node("node-0")
    link = SuperLink("127.0.0.1", free_port(), keys, tmp_path / "home", tmp_path / "log.txt")
    secure = [f"--superlink={link.address}", f"--tls-ca={keys.authority}"]
    try:
        refused, *nodes = (
            start("flower", "node", *secure, f"--key={key}", f"--data={data}", f"--port={port}")
            for key, data, port in (
                (stranger, "shards/node-0", free_port()),
                (keys.node("node-0"), "shards/node-0", free_port()),
                (keys.node("node-1"), "shards/node-1", free_port()),
            )
        )
        joined = start("train", "--engine=flower", "--out=run", *experiment, *secure)
        assert finished(joined) == (0, "")
        (record,) = RunDirectory(tmp_path / "run").records()
        assert record["clients"] == [0, 1]
        assert all(process.poll() is None for process in nodes)
        code, error = finished(refused)
        assert code == 2
        assert "specgrad-fl: the SuperNode ended with exit code" in error
    finally:
        link.process.stop()


def test_a_guarded_process_ends_with_its_parent(tmp_path):
    """Even when the parent is killed, and with what the process itself started."""
    script = (
        "from pathlib import Path; import sys, time\n"
        "from specgrad_fl.flower.processes import Process, environment\n"
        "command = ['sh', '-c', 'sleep 1000 & sleep 1000']\n"
        f"Process('two sleepers', command, environment(Path({str(tmp_path)!r})))\n"
        "print('up', flush=True); time.sleep(1000)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    waited(lambda: len(told_of(tmp_path, "sleep", "1000")) >= 2)
    parent.kill()
    parent.wait()
    waited(lambda: not told_of(tmp_path, "sleep", "1000"))


def test_a_process_says_why_it_ended(tmp_path):
    log = tmp_path / "log.txt"
    process = Process("the witness", ["sh", "-c", "echo no reason; exit 3"], dict(os.environ), log)
    assert process.wait() == 3
    with pytest.raises(engine.RunError, match="the witness ended with exit code 3: no reason"):
        process.check()
    with socket.socket() as silent:  # bound, so that nobody else listens there
        silent.bind(("127.0.0.1", 0))
        assert not answers("127.0.0.1", silent.getsockname()[1])
