"""The command: a tiny real grid, resumed, and its result reused by the other commands."""

from __future__ import annotations

import json

import pytest
from specgrad_fl import cli
from specgrad_fl.config import Config, read_toml
from specgrad_fl.runs import RunDirectory, run_name
from specgrad_study.tuning.search import OWN, axes_of

FAST = ["--clients=4", "--active=2", "--rounds=1", "--batch-size=100", "--workers=1", "--quiet"]
GRID = ["--method=fedprox", "--grid=lr=0.05,0.1", "--grid=mu=0.01,0.1", "--limit=0"]


@pytest.fixture
def tune(tmp_path, capsys):
    """Runs the command: exit code, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["tune", *FAST, f"--out={tmp_path / 'tuned'}", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_grid_is_run_once_and_its_result_reused(tune, tmp_path, capsys):
    code, out, err = tune(*GRID, "--jobs=2")
    assert (code, err) == (0, "")
    assert "4 points" in out
    runs = tmp_path / "tuned" / "runs"
    stamps = {path: path.stat().st_mtime_ns for path in runs.glob("*/summary.json")}
    assert len(stamps) == 4
    facts = json.loads((tmp_path / "tuned" / "grid.json").read_text())
    scores = {tuple(p["point"].values()): p["accuracy"] for p in facts["points"]}
    assert scores[tuple(facts["best"].values())] == max(scores.values())
    assert (tmp_path / "tuned" / "grid.png").read_bytes().startswith(b"\x89PNG")

    assert tune(*GRID)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*/summary.json")} == stamps

    best = tmp_path / "tuned" / "best.toml"
    config = Config(**read_toml(best))
    assert (config.method, config.lr) == ("fedprox", facts["best"]["lr"])
    assert config.options == {"mu": facts["best"]["mu"]}
    assert config.validation == 0
    assert RunDirectory(runs / run_name(config.replace(validation=0.1))).finished

    flags = [f"--config={best}", "--filters=none,fft", f"--out={runs}", "--quiet"]
    assert cli.main(["compare", *flags, "--workers=1"]) == 0
    assert "fedprox  fft" in capsys.readouterr().out
    assert len(list(runs.glob("*/summary.json"))) == 6


def test_held_out_samples_decide_unless_the_test_set_is_asked_for(tune, tmp_path):
    assert tune("--method=fedavg", "--grid=lr=0.001,0.1", "--limit=0")[0] == 0
    tuned = tmp_path / "tuned"
    facts = json.loads((tuned / "grid.json").read_text())
    assert (facts["decided_by"], facts["validation"]) == ("validation", 0.1)
    assert "samples that clients held out decided" in (tuned / "best.toml").read_text()
    summaries = [json.loads(p.read_text()) for p in tuned.glob("runs/*/summary.json")]
    accuracies = sorted(p["accuracy"] for p in facts["points"])
    assert accuracies == sorted(s["validation_mean_last_10"] for s in summaries)
    assert accuracies != sorted(s["mean_last_10"] for s in summaries)

    code, out, _ = tune("--method=fedavg", "--grid=lr=0.001,0.1", "--limit=0", "--decide=test")
    assert code == 0
    assert "the test set decided" in out
    facts = json.loads((tuned / "grid.json").read_text())
    assert (facts["decided_by"], facts["validation"]) == ("test", 0)


def test_the_papers_grids():
    assert [axis.values for axis in axes_of("fedavg", [])] == [
        tuple(round(0.01 * step, 2) for step in range(1, 21))
    ]
    assert axes_of("scaffold", []) == axes_of("fedavg", [])
    for method in OWN:
        lr, *own = axes_of(method, [])
        assert lr.values == (0.01, 0.05, 0.1, 0.15)
        assert own == list(OWN[method])
