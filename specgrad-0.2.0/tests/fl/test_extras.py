"""Without an optional package, a command is refused in a sentence that says how to get it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from specgrad_fl import cli
from specgrad_fl.errors import EXTRAS

SMALL = ("--clients=4", "--active=2", "--rounds=1", "--batch-size=64", "--quiet")
TRAIN = ("train", *SMALL)
# a form of each command that does something, and what it cannot do without
LINES = {
    "train": (TRAIN, {"safetensors", "matplotlib", "sklearn"}),
    "flower engine": ((*TRAIN, "--engine=flower"), {"flwr", "safetensors", "matplotlib"}),
    "resume": (("resume", "run"), {"safetensors", "matplotlib"}),
    "compare": (("compare", *SMALL), {"safetensors", "matplotlib", "sklearn"}),
    "tune": (("tune", *SMALL), {"safetensors", "matplotlib", "sklearn"}),
    "reproduce": (("reproduce", "ratio", "--preset=smoke"), {"safetensors", "matplotlib"}),
    "diagnose": (("diagnose", "run"), {"safetensors", "matplotlib"}),
    "plot": (("plot", "run"), {"safetensors", "matplotlib"}),
    "list": (("list",), set()),
    "data": (("data", "list"), set()),
    "flower": (("flower", "keys", "--host=a"), {"flwr"}),
}
# One process imports torch; a child of it, where packages are missing, runs one command.
PROGRAM = """
import contextlib, io, json, os, sys
import matplotlib.figure, matplotlib.ticker, safetensors.torch, scipy.stats, torch, torch._dynamo

def outcome(packages, line):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        for name in [n for n in sys.modules if n.partition(".")[0] in packages]:
            del sys.modules[name]
        sys.modules.update(dict.fromkeys(packages))
        from specgrad_fl import cli
        error = io.StringIO()
        with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
            code = cli.main(line)
        os.write(write, json.dumps([code, error.getvalue()]).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 100_000)
    _, status = os.waitpid(child, 0)
    return json.loads(said) if said else [status, "no answer"]

cases = json.loads(sys.stdin.read())
json.dump([outcome(*case) for case in cases], sys.stdout)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The message of each command without each package that it needs."""
    cases = [((package,), name) for name, (_, needs) in LINES.items() for package in sorted(needs)]
    cases += [(tuple(EXTRAS), name) for name in ("list", "data")]
    folder = tmp_path_factory.mktemp("without")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([(packages, LINES[name][0]) for packages, name in cases]),
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not [path for path in folder.rglob("*") if path.is_file()]  # refused before that
    return dict(zip(cases, json.loads(done.stdout), strict=True))


def test_every_command_is_tried():
    assert {line[0] for line, _ in LINES.values()} == set(
        cli._parser()._subparsers._group_actions[0].choices
    )
    assert set().union(*(needs for _, needs in LINES.values())) == set(EXTRAS) - {"PIL", "pyarrow"}


def test_a_missing_package_is_a_sentence_with_the_command(outcomes):
    for (packages, name), (code, error) in outcomes.items():
        if name in ("list", "data"):
            assert (code, error) == (0, ""), name
            continue
        (package,) = packages
        assert code == 2, (package, name, error)
        assert error.startswith("specgrad-fl: "), (package, name, error)
        assert error.count("\n") == 1, (package, name, error)
        assert f'run pip install ".[{EXTRAS[package]}]"' in error, (package, name, error)
        assert f'pip install ".[{EXTRAS[package]}]"' in error, (package, name, error)
