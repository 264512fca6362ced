"""Mistakes on the command line: one sentence and exit code 2."""

from __future__ import annotations

import http.server
import importlib.util
import re
import stat
import threading

import pytest
from flwr.app import Context, RecordDict
from specgrad_fl import cli
from specgrad_fl.errors import RunError
from specgrad_fl.flower import federation as flower
from specgrad_fl.flower import keys, server_app

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
        assert 'pip install "specgrad[fl,flower]"' in refused(*command)


def test_another_flower_is_installed(refused, monkeypatch):
    monkeypatch.setattr(flower.metadata, "version", lambda name: "1.30.0")
    for command in (TRAIN, ["flower", "keys", "--host=a"]):
        assert "this works with Flower 1.41 to 1.41, and 1.30.0 is installed" in refused(*command)


def test_nothing_is_written_before_a_refusal(refused, tmp_path):
    message = refused(*TRAIN, "--superlink=127.0.0.1:1", "--out=run")
    assert "nothing answers at 127.0.0.1:1; check --superlink" in message
    assert not (tmp_path / "run").exists()


class NoSuperLink(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        """Say nothing."""


def test_something_else_answers(refused, tmp_path):
    """A web server that is no SuperLink."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NoSuperLink) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        try:
            message = refused(
                *TRAIN, f"--superlink={address}", "--insecure", "--out=plain", "--quiet"
            )
        finally:
            server.shutdown()
    assert "`flwr run` failed: " in message
    assert not (tmp_path / "plain").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TRAIN, "--superlink=server"], "superlink is 'server'; write HOST:PORT"),
        ([*TRAIN, "--superlink=10.9.8.7:1", "--insecure"], "insecure is for the loopback"),
        ([*TRAIN, "--tls-ca=absent.crt"], "tls_ca is absent.crt, which is no file"),
        ([*TRAIN, "--min-clients=3"], "min_clients is 3 and active 2"),
        ([*TRAIN, "--nodes=0"], "nodes is 0; the least is 1"),
        ([*TRAIN, "--engine=flowers"], "engine is 'flowers'; did you mean 'flower'?"),
        (["flower", "keys", "--host=a", "--nodes=0"], "nodes is 0; the least is 1"),
        (["flower", "shards", "--clients=2", "--nodes=3"], "nodes is 3, and there are 2 clients"),
    ],
)
def test_refusals(refused, arguments, message):
    assert message in refused(*arguments)


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


VERSION = flower.metadata.version("specgrad")


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


def test_a_server_that_fails_leaves_its_traceback(tmp_path):
    files = flower.FlowerFiles(tmp_path)
    assert not files.server_lives()
    assert files.ended() == (False, None)

    def fail():
        assert files.server_lives()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), files.outcome():
        fail()
    assert not files.server_lives()
    ended, error = files.ended()
    assert ended
    assert error == f"the server failed; {files.log('server')} has the reason"
    assert "ZeroDivisionError" in files.log("server").read_text()
