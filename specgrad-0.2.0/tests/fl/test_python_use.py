"""The trainer from Python: train, read back, use the model."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from specgrad_data import load
from specgrad_fl import ConfigError, RunError, load_run, train

DOCS = Path(__file__).parents[2] / "docs" / "trainer.md"


def test_the_documented_example_runs(tmp_path, monkeypatch):
    text = DOCS.read_text(encoding="utf-8").partition("## From Python")[2]
    example = re.search(r"```python\n(.*?)```", text, re.S)
    assert example is not None
    monkeypatch.chdir(tmp_path)
    exec(example[1], {})


def test_a_run_read_back(tmp_path, small):
    train(small(rounds=2, validation=0.2), tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.config == small(rounds=2, validation=0.2).replace(
        eval_every=run.config.eval_every, eval_tail=run.config.eval_tail
    )
    assert [row["round"] for row in run.rows()] == [1, 2]
    assert all(not isinstance(v, (dict, list)) for row in run.rows() for v in row.values())
    digits = load("digits")
    for which in ("best", "last"):
        found = run.predict(digits.test_x, which)
        accuracy = float((found == digits.test_y).float().mean())
        key = "best_accuracy" if which == "best" else "final_accuracy"
        assert abs(accuracy - run.summary[key]) < 1.5 / len(digits.test_y)
    assert torch.equal(run.predict(digits.test_x.numpy(), "last"), found)


def test_wrong_samples_are_refused(tmp_path, small):
    train(small(rounds=1), tmp_path / "run")
    run = load_run(tmp_path / "run")
    for samples in (np.zeros((2, 8, 8), np.uint8), np.zeros((2, 1, 8, 8), np.float32)):
        with pytest.raises(ConfigError, match=r"takes uint8 images of shape \[N, 1, 8, 8\]"):
            run.predict(samples)
    with pytest.raises(ConfigError, match="choose best, last or previous"):
        run.model("first")
    with pytest.raises(RunError, match="is not a run directory"):
        load_run(tmp_path / "nothing")
    state = load_file(tmp_path / "run" / "best.safetensors")
    assert set(state) == set(run.model().state_dict())


def test_own_data_from_a_loader(tmp_path, monkeypatch, small):
    (tmp_path / "mine_data.py").write_text(
        "import numpy as np\n"
        "def load(classes: int = 3):\n"
        "    rng = np.random.default_rng(0)\n"
        "    x = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8)\n"
        "    y = np.arange(60) % classes\n"
        "    return dict(x_train=x[:48], y_train=y[:48], x_test=x[48:], y_test=y[48:])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = small(
        dataset="mine_data:load", data_options={"classes": 4}, clients=3, active=2, rounds=1,
        partition="iid",
    )  # fmt: skip
    train(config, tmp_path / "run")
    found = load_run(tmp_path / "run").predict(np.zeros((5, 1, 8, 8), np.uint8))
    assert found.shape == (5,)
