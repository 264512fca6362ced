"""The command: what it prints; `test_refusals.py` has its mistakes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from importlib.metadata import version

import pytest
from specgrad_fl import cli
from specgrad_fl.config import SUBJECTS
from specgrad_fl.runs import RunDirectory

FAST = ["--clients=4", "--active=2", "--rounds=2", "--workers=1", "--batch-size=100"]


@pytest.fixture
def command(capsys, tmp_path, monkeypatch):
    """Runs a command in an empty directory: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECGRAD_DATA", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.pictures
def test_train_resume_plot_list(command, tmp_path):
    code, out, err = command("train", *FAST, "--eval-every=1", "--json")
    assert (code, err) == (0, "")
    *rounds, result = map(json.loads, out.splitlines())
    assert [r["round"] for r in rounds] == [1, 2]
    assert 0 <= rounds[-1]["test_accuracy"] == result["final_accuracy"] <= 1
    assert set(rounds[-1]["split"]) == {"compute", "filter", "aggregate", "evaluate"}
    run = RunDirectory(tmp_path / result["run"])
    present = {path.name.partition(".")[0] for path in run.path.iterdir()}
    assert present >= {
        "config", "environment", "partition", "metrics", "events", "curves", "last", "best",
        "summary",
    }  # fmt: skip
    assert (run.path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (run.path / "partition.png").read_bytes().startswith(b"\x89PNG")
    table = (run.path / "metrics.csv").read_text().splitlines()
    assert len(table) == 3
    assert table[0].startswith("round,lr,train_loss,bytes_down,bytes_up,test_accuracy")

    assert command("resume", str(run.path), "--quiet")[0] == 0
    code, out, _ = command("list", "runs")
    assert code == 0
    assert "finished" in out
    code, out, _ = command("plot", str(run.path), "--out", "picture.png")
    assert code == 0
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_compare_runs_what_is_missing(command, tmp_path):
    flags = ["compare", *FAST, "--rounds=1", "--quiet", "--methods=fedavg,fedprox"]
    flags += ["--target=0.05", "--option", "fedprox.mu=0.5"]
    code, out, _ = command(*flags, "--seeds=0")
    assert code == 0
    assert "gain: points, of one seed" in out
    finished = sorted((tmp_path / "runs").glob("*/summary.json"))
    stamps = {path: path.stat().st_mtime_ns for path in finished}
    assert len(finished) == 4
    code, out, _ = command(*flags, "--seeds=0,1")
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines[:-2])) <= 80
    assert {"gain", "over", "seeds"} <= set(lines[0].split())
    assert "+-: sample standard deviation over seeds" in lines
    assert lines[-1].startswith("best: ")
    assert "over" in lines[-1] or "best: fedavg," in lines[-1]
    assert len(list((tmp_path / "runs").glob("*/summary.json"))) == 8
    assert {path: path.stat().st_mtime_ns for path in finished} == stamps
    prox = next((tmp_path / "runs").glob("*fedprox-none-s0*"))
    assert RunDirectory(prox).config().options == {"mu": 0.5}
    report = json.loads((tmp_path / "runs" / "compare.json").read_text())
    assert len(report["table"]) == 4
    pairs = {gain["row"]: gain.get("over") for gain in report["gains"]}
    assert pairs == {
        "fedavg": None, "fedavg+fft": "fedavg", "fedprox": "fedavg", "fedprox+fft": "fedprox",
    }  # fmt: skip
    runs = {label: [tmp_path / "runs" / name for name in names]
            for label, names in report["runs"].items()}  # fmt: skip
    one, two = (
        [RunDirectory(path).summary()["mean_last_10"] for path in runs[label]]
        for label in ("fedavg+fft", "fedavg")
    )
    paired = report["gains"][1]
    assert paired["mean"] == pytest.approx(50 * (sum(one) - sum(two)))
    assert paired["low"] < paired["mean"] < paired["high"]
    assert paired["seeds"] == 2
    assert (tmp_path / "runs" / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_file_then_command_line(command, tmp_path):
    (tmp_path / "experiment.toml").write_text("rounds = 1\nseed = 5\n[options]\nmu = 0.5\n")
    code, out, _ = command(
        "train", *FAST, "--rounds=1", "--json", "--quiet", "--config=experiment.toml", "--seed=6",
        "--method=fedprox",
    )  # fmt: skip
    assert code == 0
    config = RunDirectory(tmp_path / json.loads(out)["run"]).config()
    assert (config.rounds, config.seed, config.options) == (1, 6, {"mu": 0.5})


def test_listings(command):
    code, out, _ = command("list")
    assert code == 0
    for word in ("scaffold", "rho=0.1", "densenet121", "dirichlet", "cifar10", "gaussian"):
        assert word in out
    code, out, _ = command("data", "list")
    assert code == 0
    assert "digits" in out


def test_compare_takes_the_names_of_train(command):
    code, out, _ = command(
        "compare", *FAST, "--rounds=1", "--quiet", "--method=fedprox", "--filter=lap", "--seed=3"
    )
    assert code == 0
    assert out.splitlines()[1].split()[:3] == ["fedprox", "lap", "1"]


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"specgrad {version('specgrad')}\n"


def test_tune_offers_no_setting_that_it_ignores(capsys):
    with pytest.raises(SystemExit):
        cli.main(["tune", "--help"])
    text = capsys.readouterr().out
    for flag in ("--filter", "--ratio", "--lr ", "--seed ", "--target"):
        assert flag not in text


def test_warnings_are_sentences_and_matplotlib_says_none(command, small, copied, tmp_path):
    name = "\u6f22\u5b57"  # matplotlib's own font has no such letters, and warns
    copied(small(rounds=1), tmp_path / name)
    assert command("plot", name) == (0, "curves.png\n", "")


@pytest.mark.parametrize("name", ["train", "resume", "compare", "plot", "list", "data", "flower"])
def test_help_teaches(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])
    assert stopped.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 5


def test_a_run_is_never_overwritten(command, small, copied, tmp_path):
    copied(small(rounds=1), tmp_path / "here")
    before = (tmp_path / "here" / "last.safetensors").read_bytes()
    code, _, err = command("train", *FAST, "--quiet", "--out=here", "--seed=9")
    assert code == 2
    assert "already holds a run" in err
    assert (tmp_path / "here" / "last.safetensors").read_bytes() == before


def test_output_that_cannot_be_written(command, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = command("train", *FAST, "--out=file/run")
    assert code == 2
    assert "cannot write to file/run: Not a directory" in err
    if os.geteuid() != 0:  # root may write anywhere
        (tmp_path / "closed").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
        assert command("train", *FAST, "--out=closed/run")[0] == 2


def test_interrupt_says_how_to_go_on(command, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    words = {"train": "before the run began; nothing was written", "compare": "the same command"}
    monkeypatch.setattr(cli, "_check_installed", interrupt)  # before the command's own work
    for name in ("train", "compare", "list"):
        code, _, err = command(name)
        assert code == 130
        assert err.startswith("\nspecgrad-fl: interrupted")
        assert words.get(name, "") in err


def test_an_interrupted_run_is_named(command, monkeypatch):
    from specgrad_fl import progress

    def interrupt(record, config):
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "watcher", lambda *_: interrupt)
    code, _, err = command("train", *FAST, "--out=here")
    assert code == 130
    assert "`specgrad-fl resume here` continues" in err


@pytest.mark.pictures
def test_the_first_minute(command):
    code, out, err = command("train", *FAST, "--out=here")
    assert code == 0
    assert err.startswith("run: here\ndata: digits, 1438 training and 359 test images of 8 x 8")
    header, numbers, ending, result = out.splitlines()
    assert header.split()[:3] == ["rounds", "final", "%"]
    assert numbers.split()[0] == "2"
    assert ending == "run: here  pictures: curves.png, partition.png"
    assert result.startswith("accuracy ")
    assert "% after round 2, best " in result


@pytest.mark.parametrize("line", [["--help"], ["train", "--help"], ["compare", "--help"]])
def test_help_answers_without_waiting_for_torch(line):
    program = "import sys; sys.modules['torch'] = None; from specgrad_fl import cli; cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *line], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: specgrad-fl")


def test_settings_are_grouped_by_subject(command, capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = capsys.readouterr().out
    places = [text.index(f"\n{name}:") for name in SUBJECTS.values()]
    assert places == sorted(places)
    with pytest.raises(SystemExit):
        cli.main(["compare", "--help"])
    text = capsys.readouterr().out
    for flag in ("--methods A,B", "--filters A,B", "--seeds 0,1", "--vary NAME=V,V"):
        assert len(text.rpartition(flag)[2].partition("--")[0].strip()) > 10


def test_compare_varies_any_setting(command, tmp_path):
    code, out, _ = command(
        "compare", *FAST, "--rounds=1", "--quiet", "--vary=ratio=0.01,0.2", "--validation=0.2"
    )
    assert code == 0
    header, *rows = out.splitlines()[:4]
    assert "ratio" in header.split()
    assert "worst tenth %" in header
    assert [row.split()[1:3] for row in rows] == [["none", "-"], ["fft", "0.01"], ["fft", "0.2"]]
    assert (tmp_path / "runs" / "compare-clients.png").is_file()


def test_one_seed_given_twice_is_one_seed(command):
    twice = ["--methods=fedavg,fedavg", "--seeds=0,0"]
    code, out, _ = command("compare", *FAST, "--rounds=1", "--quiet", *twice)
    assert code == 0
    assert out.count("\nfedavg ") == 2
    assert "+-" not in out


def test_compare_as_json_side_by_side(command):
    flags = ["compare", *FAST, "--rounds=1", "--seeds=0", "--jobs=2", "--json"]
    code, out, err = command(*flags)
    assert (code, err) == (0, "")
    *rounds, result = map(json.loads, out.splitlines())
    assert {line["run"].split("-")[3] for line in rounds} == {"none", "fft"}
    assert [gain["row"] for gain in result["gains"]] == ["fedavg", "fedavg+fft"]
    assert result["gains"][1]["low"] is None


@pytest.mark.parametrize(
    ("file", "text", "commands", "message"),
    [
        ("metrics.jsonl", "3\n", ("list", "plot"), "line 1 of runs/one/metrics.jsonl is damaged"),
        ("metrics.jsonl", '{"a": 1}\n', ("list", "plot"), "is damaged; restore it"),
        ("summary.json", "[]", ("resume",), "summary.json is damaged; delete it and resume"),
        ("summary.json", "{}", ("resume",), "summary.json is damaged; delete it and resume"),
        ("summary.json", "{", ("resume",), "summary.json is damaged; delete it and resume"),
    ],
)
def test_a_damaged_run_is_named(command, small, copied, tmp_path, file, text, commands, message):
    copied(small(rounds=1), tmp_path / "runs/one")
    (tmp_path / "runs/one" / file).write_text(text)
    for name in commands:
        code, _, err = command(name, "runs" if name == "list" else "runs/one")
        assert code == 2
        assert message in err


def test_plot_tells_runs_of_one_name_apart(command, small, copied, tmp_path, monkeypatch):
    from specgrad_fl import plots

    drawn = {}
    monkeypatch.setattr(plots, "curves", lambda path, runs: drawn.update(runs))
    for folder in ("a", "b"):
        copied(small(rounds=1), tmp_path / folder / "run")
    assert command("plot", "a/run", "b/run")[0] == 0
    assert list(drawn) == ["a/run", "b/run"]


def test_data_list_knows_what_is_here(command, tmp_path):
    (tmp_path / "data/cifar10").mkdir(parents=True)
    (tmp_path / "data/cifar100").mkdir()
    (tmp_path / "data/cifar100/train.bin").write_bytes(b"")
    _, out, _ = command("data", "list", "--data-root=data")
    here = {line.split()[0] for line in out.splitlines() if line.split()[1] == "here"}
    assert here == {"digits", "cifar100"}


def test_an_environment_that_names_no_backend_is_refused():
    command = [sys.executable, "-m", "specgrad_fl.cli", "list"]
    environment = {**os.environ, "SPECGRAD_BACKEND": "abacus"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("specgrad-fl: SPECGRAD_BACKEND must be one of auto,")
    assert done.stderr.endswith("got 'abacus'\n")
