"""Stock Flower processes: `train --engine flower`; SuperNodes with TLS in `make test-all`."""

from __future__ import annotations

import ctypes
import encodings.idna  # noqa: F401 - sockets want it, and nobody may not read where it is
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from federations import SMALL, result_of, rounds_of
from specgrad_fl import Config, training
from specgrad_fl.errors import RunError
from specgrad_fl.flower import federation, keys
from specgrad_fl.flower.federation import (
    LOOPBACK,
    answers,
    environment,
    flwr,
    private_network,
)
from specgrad_fl.runs import RunDirectory
from stock import PATIENCE, VERSION, Stock, files_others_can_read, waited

pytestmark = pytest.mark.slow

SETTINGS = {**SMALL, "clients": 3, "active": 3, "rounds": 2, "filter": "fft", "seed": 3}


class Enough(Exception):
    """Ends a run in one process after two rounds."""


def after_two(record: dict, config: Config) -> None:
    if record["round"] == 2:
        raise Enough


CONFIG = Config(**SETTINGS, method="scaffold").replace(rounds=3)


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """A SuperLink, two nodes and a third one whose key nobody registered."""
    federation = Stock(tmp_path_factory.mktemp("stock"), 2)
    try:
        federation.start()
        keys.make(federation.folder / "strangers", [LOOPBACK], ["stranger"])
        key = federation.folder / "strangers" / "stranger"
        federation.node("stranger", key, "partition-id=0 num-partitions=2")
        yield federation
    finally:
        federation.stop()


@pytest.fixture(scope="module")
def two_rounds(stock):
    """State after two rounds of three; in the third, a node is killed.

    Flower misses the node up to a minute later, and other tests use that time.
    """
    stock.submit(CONFIG, "run")
    # admitted, it would end the run as a second node with client 0
    stranger = stock.processes["stranger"]
    waited(lambda: stranger.poll() is not None or "failed" in stock.log("stranger"))
    run = RunDirectory(stock.folder / "run")
    waited(lambda: run.load_rounds() == 2, stock.processes["superlink"])
    os.kill(stock.processes["node-1"].pid, signal.SIGKILL)
    return result_of(run)


@pytest.mark.exhaustive
def test_two_rounds_on_stock_nodes_are_those_of_one_process(stock, two_rounds, tmp_path):
    with pytest.raises(Enough):
        training.train(CONFIG, tmp_path / "here", after_two)
    here, there = RunDirectory(tmp_path / "here"), RunDirectory(stock.folder / "run")
    assert two_rounds == result_of(here)
    assert rounds_of(there)[:2] == rounds_of(here)
    for record in there.records()[:2]:  # three clients on two nodes share what goes down
        assert record["wire_bytes"]["up"] == pytest.approx(record["bytes_up"], rel=0.01)
    assert files_others_can_read(there.path) == []
    assert files_others_can_read(stock.home / "specgrad") in ([], [str(stock.home / "specgrad")])


@pytest.mark.exhaustive
def test_a_refused_setting_ends_the_run_in_a_sentence(stock, two_rounds):
    number = stock.submit(Config(**SETTINGS), "refused", "--run-config", "method='fedporx'")
    assert "there is no method 'fedporx'; did you mean 'fedprox'?" in stock.said(number)
    assert stock.status(number) == "finished:failed"
    assert not (stock.folder / "refused").exists()
    with pytest.raises(RunError, match=r"`flwr run` failed: .*nowhere"):
        flwr("run", str(stock.folder / "app-refused"), "nowhere", env=stock.env)


def has_networks_of_its_own() -> bool:
    """Return True if this machine lets a process have a network of its own."""
    child = os.fork()
    if child == 0:
        try:
            private_network()
        except RunError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def inside(folder: Path) -> list[int]:
    """Processes whose environment or command names a folder; strangers' cannot be read."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            told = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found


def told_as_nobody(action: Callable[[], str]) -> str:
    """Result of a function in a process of another user, where this one may be another.

    Nothing is executed: the interpreter may lie where only its owner reaches it.
    """
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                set_dumpable = 4  # a program that is started has its own /proc/self
                ctypes.CDLL(None).prctl(set_dumpable, 1, 0, 0, 0)
            told = action()
        except BaseException as error:
            told = str(error)
        os.write(sender, told.encode())
        os._exit(0)
    os.close(sender)
    with open(receiver, encoding="utf-8") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


@pytest.mark.skipif(VERSION < (1, 41), reason="the command starts Flower 1.41 and newer")
def test_the_command_is_killed_and_resumed(tmp_path):
    """Nobody else reaches its processes, and they end with it."""
    private = has_networks_of_its_own()
    settings = {**SETTINGS, "clients": 2, "active": 2, "method": "feddyn", "filter": "lap"}
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in settings.items()]

    def start(*words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "specgrad_fl.cli", *words, "--quiet"],
            cwd=tmp_path,
            env={**environment(tmp_path / "home"), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )

    trial = [
        "--engine=flower",
        "--nodes=2",
        "--out=run",
        *([] if private else ["--engine-option=insecure=true"]),
    ]
    command = start("train", *trial, *flags)
    here = training.train(Config(**settings), tmp_path / "here")
    run = RunDirectory(tmp_path / "run")
    waited(lambda: len(run.records()) >= 1, command)
    commands = [Path(f"/proc/{number}/cmdline").read_text() for number in inside(run.path)]
    ports = [int(port) for told in commands for port in re.findall(r"--port\0(\d+)\0", told)]
    assert len(ports) >= 3
    if private:
        assert not any(answers(LOOPBACK, port) for port in ports)
        reached = told_as_nobody(lambda: str([p for p in ports if answers(LOOPBACK, p)]))
        assert reached == "[]"
    command.kill()
    command.wait()
    waited(lambda: not inside(tmp_path))
    assert len(run.records()) == 1
    assert files_others_can_read(run.path) == []

    again = start("resume", "run", "--nodes=1")
    assert again.wait(PATIENCE) == 0, again.communicate()
    assert rounds_of(run) == rounds_of(here)
    assert result_of(run) == result_of(here)
    waited(lambda: not inside(tmp_path))


@pytest.mark.exhaustive
def test_a_killed_node_is_left_out(stock, two_rounds):
    """In the third round: its client is missed, the run goes on with the others."""
    run = RunDirectory(stock.folder / "run")
    waited(lambda: run.finished, stock.processes["superlink"])
    status = waited(lambda: stock.status(stock.runs["run"]).partition("finished:")[2])
    assert status == "completed", stock.log("superlink")
    last = run.records()[2]
    assert (last["clients"], last["left_out"]) == ([0, 2], [1])
    assert last["reasons"][0].startswith("client 1: ")


def alone() -> str:
    """Take a network of one's own, and say so if it has a loopback interface and nothing else."""
    private_network()
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        socket.create_connection(listener.getsockname()).close()
    try:
        socket.create_connection(("192.0.2.1", 9), timeout=1)
    except OSError:
        return "alone"
    return "the world answers"


def conducted() -> str:
    """The exit code of a conductor, in a process of several threads, that takes such a network."""
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federation.Conductor, "conduct", lambda self: private_network())
        return str(federation.main("nowhere", "[]"))


def test_a_network_of_ones_own_has_a_loopback_interface():
    """Taken by somebody who is not root, and needs a user namespace for it."""
    told = told_as_nobody(alone)
    if "network of its own here" in told:
        pytest.skip("this machine lets nobody but root have a network of its own")
    assert told == "alone"
    assert set(told_as_nobody(conducted)) == {"0"}  # told by the process and by its fork
