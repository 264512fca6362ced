"""The worked example of the documentation is a method like any other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from specgrad_fl import storage, training

DOCUMENT = Path(__file__).parents[2] / "docs" / "trainer.md"


def shown(name, tmp_path, monkeypatch):
    """A class that the document shows, importable from a file of its own."""
    sources = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (source,) = [text for text in sources if f"class {name}(" in text]
    (tmp_path / f"{name.lower()}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name.lower()}:{name}"


@pytest.fixture
def example(tmp_path, monkeypatch):
    return shown("Momentum", tmp_path, monkeypatch)


def test_runs_with_filter_workers_and_resume(example, tmp_path, small):
    config = small(method=example, options={"beta": 0.9}, filter="fft", rounds=3)
    one = training.train(config, tmp_path / "one")

    class Stop(Exception):
        pass

    def stop(record, config):
        if record["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        training.train(config.replace(workers=2), tmp_path / "two", stop)
    two = training.resume(tmp_path / "two", allow=[example])
    assert one.last_path.read_bytes() == two.last_path.read_bytes()
    tensors, facts = storage.load_tensors(one.last_path)
    assert tensors["server.velocity"].any()
    assert facts["client_rounds"]


def test_without_its_parts_it_is_fedavg(example, play):
    plain = play()
    own = play(method=example, options={"beta": 0.0, "strength": 0.0})
    assert (plain.board.weights - own.board.weights).abs().max() < 1e-6


def test_fedadam_takes_the_step_of_its_equation(tmp_path, monkeypatch, play):
    fedadam = shown("FedAdam", tmp_path, monkeypatch)
    start = play(rounds=1, server_lr=0.0).board.weights.double()
    change = play(rounds=1).board.weights.double() - start
    m, v = 0.1 * change, 0.99 * 1e-3**2 + 0.01 * change.square()
    expected = start + 0.05 * m / (v.sqrt() + 1e-3)
    found = play(rounds=1, method=fedadam, options={"lr": 0.05}).board.weights.double()
    assert (expected - start).abs().max() > 1e-3
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)


def test_every_setting_in_the_document_exists():
    from specgrad_fl.config import FIELDS

    _, _, after = DOCUMENT.read_text().partition("| setting | default | meaning |\n")
    table = re.findall(r"^\| `([a-z_`, ]+)` \|", after.partition("\n\n")[0], re.MULTILINE)
    documented = {name for cell in table for name in re.split(r"[`, ]+", cell)}
    assert {"alpha", "partition_options", "lr", "eval_every", "workers", "clip"} <= documented
    assert documented <= set(FIELDS)
