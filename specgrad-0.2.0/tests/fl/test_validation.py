"""Held-out samples: who holds them, that nobody trains on them, and what they decide."""

from __future__ import annotations

import pytest
import specgrad_data
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specgrad_fl import prepare, storage, training
from specgrad_fl.errors import ConfigError
from specgrad_fl.executor import Score
from specgrad_fl.partition import Partition, make_partition
from specgrad_fl.results import client_statistics


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([0.1, 0.25, 0.5]), st.sampled_from(["once", "refill"]), st.integers(0, 99))
def test_nobody_trains_on_a_sample_that_is_held_out(share, mode, seed):
    whole = make_partition(
        specgrad_data.load("digits"), kind="dirichlet", clients=8, mode=mode, seed=seed
    )
    cut = whole.hold_out(share, seed)
    trained = set(torch.cat(cut.clients).tolist())
    held = set(torch.cat(cut.held_out).tolist())
    assert not trained & held
    for before, kept, away in zip(whole.clients, cut.clients, cut.held_out, strict=True):
        assert set(away.tolist()) <= set(before.tolist())
        assert len(set(away.tolist())) == len(away)
        assert set(kept.tolist()) == set(before.tolist()) - held
        if mode == "once":
            assert len(away) == round(share * len(before))
    again = whole.hold_out(share, seed)
    assert again.digest == cut.digest != whole.hold_out(share, seed + 1).digest


def test_a_share_that_is_no_sample_or_all_of_them():
    whole = make_partition(specgrad_data.load("digits"), kind="iid", clients=1438, seed=0)
    with pytest.raises(ConfigError, match="less than one sample"):
        whole.hold_out(0.1, 0)
    few = Partition([torch.tensor([0]), torch.tensor([0, 1])], "iid", "", 0.1, 0)
    with pytest.raises(ConfigError, match="leaves client 0 no sample"):
        few.hold_out(0.9, 0)


def test_the_partition_file_keeps_them(tmp_path, small):
    config = small(validation=0.2)
    partition = prepare.divide(config, prepare.load_data(config))
    partition.save(tmp_path / "p.npz")
    assert Partition.load(tmp_path / "p.npz").digest == partition.digest


def test_scores_by_client():
    score = Score([1, 0, 1, 1, 0], 0.5)
    assert score.accuracy == 0.6
    assert score.by_client([2, 0, 3]) == [0.5, 2 / 3]
    found = client_statistics([0.0] + [1.0] * 19)
    assert found == {"mean": 0.95, "spread": pytest.approx(0.2179449), "worst_decile": 0.5}


@pytest.mark.parametrize("workers", [1, 2])
def test_validation_chooses_and_the_test_set_is_for_the_end(tmp_path, small, workers):
    config = small(rounds=4, validation=0.2, eval_tail=1, workers=workers, target=0.1)
    run = training.train(config, tmp_path / "run")
    records = run.records()
    assert all("validation_accuracy" in r for r in records)
    assert [r["round"] for r in records if "test_accuracy" in r] == [4]
    assert [r["round"] for r in records if "client_accuracies" in r] == [4]
    last = records[-1]
    sizes = [len(part) for part in Partition.load(run.partition_path).held_out]
    right = [a * n for a, n in zip(last["client_accuracies"], sizes, strict=True)]
    assert last["validation_accuracy"] == pytest.approx(sum(right) / sum(sizes))
    assert last["client_accuracy"] == client_statistics(last["client_accuracies"])
    best = max(records, key=lambda r: r["validation_accuracy"])
    reached = [r["round"] for r in records if r["validation_accuracy"] >= config.target]
    summary = run.summary()
    assert summary["rounds_to_target"] == reached[0] < 4
    assert (summary["best_round"], summary["chosen_on"]) == (best["round"], "validation")
    assert summary["best_validation_accuracy"] == best["validation_accuracy"]
    assert summary["final_accuracy"] == last["test_accuracy"]
    assert 0 <= summary["best_accuracy"] <= 1
    if best["round"] == 4:
        assert summary["best_accuracy"] == last["test_accuracy"]
    facts = storage.load_tensors(run.best_path)[1]
    assert facts["round"] == best["round"]
    assert "held out" in facts["chosen_on"]
    assert training.resume(run.path).summary() == summary


def test_without_validation_the_best_weights_say_so(tmp_path, small):
    run = training.train(small(rounds=1), tmp_path / "run")
    assert "the test set" in storage.load_tensors(run.best_path)[1]["chosen_on"]
    assert run.summary()["chosen_on"] == "test"
