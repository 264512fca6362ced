"""The contenders of the comparison do the same work, and one that does not is refused."""

from __future__ import annotations

import json
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from specgrad_fl import Config, train
from torch import nn

from benchmarks import growth, machine
from benchmarks.peers import run, with_loop, with_specgrad, workloads
from benchmarks.peers.workloads import Workload


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 10))


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    small = Workload("small", 4, 6, 6, (2, 6, 6), _net)
    monkeypatch.setitem(workloads.WORKLOADS, "small", small)
    return SimpleNamespace(name="small", workload=small, channels_last=False)


def test_loops_and_the_trainer_end_with_the_same_weights(turns, tmp_path) -> None:
    loops = [list(islice(loop(turns), 2))[1] for loop in with_loop.LOOPS.values()]
    changes = {"rounds": 2, "eval_every": 2, "machine_options": {"stack": "1"}, "workers": 1}
    train(Config(**(with_specgrad.settings(turns) | changes)), tmp_path / "run")
    stored = load_file(tmp_path / "run" / "last.safetensors")
    ours = {k.removeprefix("model."): v for k, v in stored.items() if k.startswith("model.")}
    initial = turns.workload.model().state_dict()
    assert max(float((ours[name] - initial[name]).abs().max()) for name in ours) > 1e-3
    for weights in (loops[1], ours):
        run.check(turns.workload, "one", weights, loops[0])


def test_other_work_is_refused(turns) -> None:
    expected = turns.workload.model().state_dict()
    other = {name: tensor + 1e-3 for name, tensor in expected.items()}
    with pytest.raises(RuntimeError, match="weight of one is off by"):
        run.check(turns.workload, "one", other, expected)
    other.popitem()
    with pytest.raises(RuntimeError, match="one trained"):
        run.check(turns.workload, "one", other, expected)


def test_every_contender_but_ours_runs_as_it_is_and_tuned() -> None:
    names = [name for name, _, _ in run.contenders(["specgrad", "pfl"])]
    assert names == ["specgrad", "pfl", "pfl, tuned"]
    assert "--channels-last" in run.WAYS["pfl"].command("resnet8", tuned=True)
    assert run.KEPT_MALLOC.items() <= run.WAYS["pfl"].variables("resnet8", tuned=True).items()
    assert not run.KEPT_MALLOC.keys() & run.WAYS["pfl"].variables("resnet8", tuned=False).keys()


def test_the_fastest_contender_stands_first() -> None:
    rows = {
        "pfl": {"wall": [4.0, 2.0, 3.0], "cpu": [1.0], "mib": 9.0},
        "specgrad": {"wall": [1.0, 2.0, 1.5], "cpu": [0.5], "mib": 9.0},
    }
    lines = run.table({"workloads": {"linear": rows}}).splitlines()
    ours, pfl = lines[4:6]
    assert ours.startswith("| specgrad | 1.500 (1.000 to 2.000) | 0.500 (0.500 to 0.500) | 1.00 |")
    assert pfl.startswith("| pfl | 3.000 (2.000 to 4.000) | 1.000 (1.000 to 1.000) | 2.00 | 2.00 |")


def test_growth_has_networks_of_the_size_it_says() -> None:
    for weights in (10**4, 10**6):
        counted = sum(p.numel() for p in growth.network(weights).parameters())
        assert counted == pytest.approx(weights, rel=0.01)
    assert torch.equal(
        torch.from_numpy(growth.arrays(3)["writer_train"]), torch.arange(3).repeat_interleave(10)
    )


def test_parts_measured_later_are_added_to_those_in_the_file(tmp_path) -> None:
    asked = SimpleNamespace(json=tmp_path / "all.json", plot=tmp_path / "all.png")
    for part in ("one", "two"):
        machine.measure_parts(
            "cases", [part], str.upper, asked, str, lambda _, path: path.touch(), {"peers": part}
        )
    stored = json.loads(asked.json.read_text())
    assert stored["cases"] == {"one": "ONE", "two": "TWO"}
    assert stored["versions"]["peers"] == "two"
    assert asked.plot.exists()
