"""Mistakes on the command line: one sentence and exit code 2."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import ssl
import stat
import sys
import time
import types
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from specgrad_fl import cli
from specgrad_fl.errors import RunError
from specgrad_fl.flower import app, federation, keys, server_app

TRAIN = ["train", "--engine=flower", "--clients=2", "--active=2", "--rounds=1"]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """The sentence with which a command is refused."""
    monkeypatch.chdir(tmp_path)

    def refused(*arguments: str) -> str:
        assert cli.main(list(arguments)) == 2
        error = capsys.readouterr().err
        assert error.startswith("specgrad-fl: ")
        assert len(error.splitlines()) == 1
        return error

    return refused


def test_flower_is_not_installed(refused, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "flwr" else found(name, *a)
    )
    for command in (TRAIN, ["flower", "keys", "--host=a"]):
        assert 'run pip install ".[fl,flower]"' in refused(*command)


def test_another_flower_is_installed(refused, monkeypatch):
    monkeypatch.setattr(app.metadata, "version", lambda name: "1.27.0")
    for oldest, command in (("1.41", TRAIN), ("1.28", ["flower", "keys", "--host=a"])):
        expected = f"this works with Flower {oldest} to 1.42, and 1.27.0 is installed"
        assert expected in refused(*command)


def test_shards_are_for_their_node_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["flower", "shards", "--clients=2", "--nodes=1"]) == 0
    folder = tmp_path / "shards" / "node-0"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, *sorted(folder.iterdir()))]
    assert modes == [0o700, 0o600, 0o600]


def test_keys_are_private_and_never_replaced(tmp_path):
    keys.make(tmp_path / "keys", ["server", "10.0.0.1"], ["node-0"])
    for secret in ("ca.key", "superlink.key", "node-0"):
        assert stat.S_IMODE((tmp_path / "keys" / secret).stat().st_mode) == 0o600
    with pytest.raises(RunError, match="exists; choose another --out"):
        keys.make(tmp_path / "keys", ["server"], ["node-1"])


def test_certificates_are_for_the_hosts_they_name(tmp_path):
    """A handshake in memory, as SuperNodes make one with the SuperLink."""
    keys.make(tmp_path / "keys", ["server", "10.0.0.1"], ["node-0"])
    link = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    link.load_cert_chain(tmp_path / "keys/superlink.crt", tmp_path / "keys/superlink.key")
    node = ssl.create_default_context(cafile=tmp_path / "keys/ca.crt")

    def greet(host: str) -> None:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [
            node.wrap_bio(down, up, server_hostname=host),
            link.wrap_bio(up, down, server_side=True),
        ]
        for end in (*ends, *ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()

    for host in ("server", "10.0.0.1"):
        greet(host)
    for host in ("elsewhere", "10.0.0.2"):
        with pytest.raises(ssl.SSLCertVerificationError):
            greet(host)


VERSION = app.metadata.version("specgrad")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"specgrad": "9.9"}, "and the app was written by 9.9; install the same version"),
        ({"specgrad": VERSION, "rounds": 0}, "rounds is 0; the least is 1"),
        ({"specgrad": VERSION, "method": "fedporx"}, "did you mean 'fedprox'?"),
        ({"specgrad": VERSION, "dataset": "digit"}, "did you mean 'digits'?"),
        ({"specgrad": VERSION, "options": "mu=1"}, "options is 'mu=1' in the run's configuration"),
        ({"specgrad": VERSION, "roundz": 3}, "unknown setting 'roundz'; did you mean 'rounds'?"),
    ],
)
def test_the_server_refuses_a_setting(asked, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = Context(1, 0, {}, RecordDict(), asked)
    with pytest.raises(RunError, match=re.escape(message)):
        server_app.main(None, context)
    assert not list(tmp_path.iterdir())


ENDS = {
    "a mistake": ("specgrad_data.errors.UserError: too few\n", "too few", "^too few$"),
    "a fault": (
        "ZeroDivisionError: none\n",
        "none",
        r"the run did: .*none \(see .*server.txt",
    ),
    "a death": ("round 1 of 2\n", None, r"No heartbeat .*; continue with `specgrad-fl resume "),
}


@pytest.mark.parametrize("name", ENDS)
def test_why_a_server_ended(tmp_path, monkeypatch, name):
    """Its own sentence where it has one, else the way to its log and on."""
    said, raised, message = ENDS[name]
    told = f"ServerApp failed with exception: {raised}" if raised else "No heartbeat"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "server.txt").write_text(said)
    answer = {"runs": [{"status": "finished:failed", "status-details": told}]}
    monkeypatch.setattr(federation, "flwr", lambda *words: answer)
    with pytest.raises(RunError, match=message):
        raise federation.Conductor(tmp_path)._ended("server", 0)


def test_a_process_that_ends_early_is_named(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    held, _wanted = (os.fdopen(end) for end in os.pipe())
    monkeypatch.setattr(sys, "stdin", held)
    conductor = federation.Conductor(tmp_path)
    conductor._start("superlink", ["sh", "-c", "echo no room; exit 3"])
    with pytest.raises(RunError, match=r"superlink ended with exit code 3: no room \(see .*txt"):
        conductor._until(lambda: False)


def test_a_machine_that_gives_users_no_network(monkeypatch):
    """As systems do that keep namespaces from ordinary users: the sentence names the way out."""
    libc = types.SimpleNamespace(unshare=lambda flags: -1)
    monkeypatch.setattr(federation.ctypes, "CDLL", lambda *name, **options: libc)
    monkeypatch.setattr(federation.ctypes, "get_errno", lambda: errno.EPERM)
    with pytest.raises(
        RunError,
        match=r"Operation not permitted\); .* with --engine-option insecure=true, or `flwr",
    ):
        federation.private_network()


def test_what_a_process_started_in_a_group_of_its_own_ends_too(tmp_path):
    """As SuperLinks start servers, which would go on asking a SuperLink that has gone."""
    (tmp_path / "logs").mkdir()
    conductor = federation.Conductor(tmp_path)
    started = tmp_path / "started"
    script = 'setsid sleep 60 & echo $! > "$0"; wait'
    conductor._start("superlink", ["sh", "-c", script, str(started)])
    while not started.is_file() or not started.read_text().strip():
        time.sleep(0.01)
    number = int(started.read_text())
    while os.getpgid(number) != number:  # until setsid has done its work
        time.sleep(0.01)
    conductor.stop()
    for _ in range(500):
        state = Path(f"/proc/{number}/stat")
        if not state.exists() or state.read_text().split(") ")[1][0] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("it lives on")
