"""The worked example of the documentation is a method like any other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from specgrad_fl import storage, training

DOCUMENT = Path(__file__).parents[2] / "docs" / "trainer.md"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The file that the document shows, importable."""
    shown = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (source,) = [text for text in shown if "class Momentum" in text]
    (tmp_path / "momentum.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return "momentum:Momentum"


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


def test_every_setting_in_the_document_exists():
    from specgrad_fl.config import FIELDS

    _, _, after = DOCUMENT.read_text().partition("| setting | default | meaning |\n")
    table = re.findall(r"^\| `([a-z_`, ]+)` \|", after.partition("\n\n")[0], re.MULTILINE)
    documented = {name for cell in table for name in re.split(r"[`, ]+", cell)}
    assert {"alpha", "partition_options", "lr", "eval_every", "workers", "clip"} <= documented
    assert documented <= set(FIELDS)
