"""Experiments at smoke size, all of them in ``make test-all``: complete, and with their effect."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import specgrad_data
import torch
from representatives import only
from specgrad_fl import cli
from specgrad_fl.engine import Engine
from specgrad_fl.partition import Partition
from specgrad_fl.runs import RunDirectory
from specgrad_study.paper import drift, timing
from specgrad_study.paper.ablations import INNERMOST, OUTERMOST
from specgrad_study.paper.archive import LEFT_OUT, Archive, Measured
from specgrad_study.paper.presets import PRESETS
from specgrad_study.paper.registry import EXPERIMENTS

from specgrad_kernels import filter_grads_

# every kind of cell: trained, diagnosed, with a partition of its own
FEW = ("strategies", "cka", "feature-shift")


@pytest.mark.parametrize("name", only(FEW, EXPERIMENTS))
def test_the_report_is_complete(play, name):
    played = play(name)
    for value in played.results["values"]:
        if str(LEFT_OUT) in value["missing"]:
            assert f"{LEFT_OUT}: " in played.markdown
        else:
            assert value["missing"] == []
            assert len(value["values"]) >= 1
            assert set(value["sources"]) == set(value["values"])
            assert f"| {PRESETS['smoke']().shown(value['row'])} |" in played.markdown
    for cell in played.cells:
        if played.experiment.trained(cell):
            assert all(played.run_of(cell, seed).finished for seed in cell.seeds)
    assert not re.search("not diagnosed|not timed|not run:", played.markdown)
    pictures = list(played.report.glob("*.png"))
    assert played.html.count("data:image/png;base64,") == len(pictures)
    assert all(path.stat().st_size < 200_000 for path in pictures)
    assert bool(pictures) == bool(played.experiment.draws)
    assert "A smoke test" in played.html


def all_differ(vectors: list[torch.Tensor]) -> bool:
    return not any(torch.equal(a, b) for a, b in itertools.combinations(vectors, 2))


@pytest.mark.parametrize("name", only(FEW, ["strategies", "orders", "ratio"]))
def test_every_row_trains_another_model(play, name):
    """A filter, an order or a ratio that had no effect would give equal weights."""
    played = play(name)
    assert all_differ([played.weights(cell.row, cell.column) for cell in played.cells])


@pytest.mark.exhaustive
def test_selections_of_layers_train_other_models(play):
    played = play("layers")
    for backbone in ("ResNet-20", "ViT"):
        rows = [cell.row for cell in played.cells if cell.row.startswith(backbone)]
        assert len(rows) >= 6
        assert all_differ([played.weights(row) for row in rows])


@pytest.mark.exhaustive
def test_methods_differ_and_the_filter_changes_each(play):
    table1, table2 = play("table1"), play("table2")
    rows = [cell.row for cell in table1.cells if cell.column == "CIFAR-10, alpha 0.1"]
    assert len(rows) == 10
    # in two rounds FedAWA's and FedDisco's weights need not have moved
    strong = [row for row in rows if row not in ("FedAWA", "FedDisco")]
    assert all_differ([table1.weights(row, "CIFAR-10, alpha 0.1") for row in strong])
    for cell in table2.cells:
        if not cell.row.endswith("+ FFT"):
            plain = table2.weights(cell.row, cell.column)
            assert not torch.equal(plain, table2.weights(f"{cell.row} + FFT", cell.column))


def label_shares(run: RunDirectory) -> np.ndarray:
    """Mean distance of the clients' labels from the uniform distribution."""
    labels = specgrad_data.load("digits").train_y
    partition = Partition.load(run.partition_path)
    counts = torch.stack([torch.bincount(labels[held], minlength=10) for held in partition.clients])
    shares = counts / counts.sum(1, keepdim=True)
    return (0.5 * (shares - 0.1).abs().sum(1)).mean().numpy()


@pytest.mark.exhaustive
def test_near_iid_clients_are_more_alike(play):
    near, skewed = play("near-iid"), play("strategies")
    assert label_shares(near.run("FedAvg")) < 0.15
    assert label_shares(skewed.run("None (FedAvg)")) > 0.5


@pytest.mark.exhaustive
def test_centralised_training_has_one_client_with_everything(play):
    played = play("centralised")
    run = played.run("centralised: baseline")
    partition = Partition.load(run.partition_path)
    assert partition.sizes == [1438]
    weights = [played.weights(f"centralised: {end}") for end in ("baseline", "+ FFT")]
    assert not torch.equal(*weights)


def test_feature_shift_gives_a_client_few_corruptions(play):
    run = play("feature-shift").run("FedAvg")
    domains = specgrad_data.load("digits", corrupted=True).domains
    held = [domains[c].unique() for c in Partition.load(run.partition_path).clients]
    assert all(2 <= len(kinds) <= 3 for kinds in held)
    assert len(torch.cat(held).unique()) == 5


@pytest.mark.exhaustive
def test_femnist_columns_differ_in_participation(play):
    played = play("femnist")
    active = [
        played.run("FedAvg", f"active ratio {ratio}").config().active for ratio in ("0.05", "0.1")
    ]
    clients = played.run("FedAvg").config().clients
    assert active == [max(1, round(ratio * clients)) for ratio in (0.05, 0.1)]


@pytest.mark.exhaustive
def test_settings_are_the_ones_in_the_label(play):
    played = play("settings")
    for cell in played.cells:
        config = played.run_of(cell).config()
        name, value = cell.row.partition(": ")[0].split()
        share = config.active / config.clients
        assert {"clients": config.clients, "epochs": config.epochs, "participation": share}[
            name
        ] == pytest.approx(float(value), abs=0.1 if name == "participation" else 0)


@pytest.mark.exhaustive
def test_curves_have_a_point_for_each_evaluated_round(play):
    played = play("curves")
    records = played.run("FedAvg + FFT").records()
    assert [r["round"] for r in records if "test_accuracy" in r] == [1, 2]


def test_time_adds_up(play):
    played = play("time")
    share = "CIFAR-10, filter, % of client time"
    assert played.value("FedAvg", share) == 0
    assert played.value("FedAvg + FFT", share) > 0
    assert played.value("FedAvg + FFT, torch.fft loop", share) > 0
    for cell in played.cells:
        if cell.row == timing.LOOP:
            continue
        rounds, each, total = (
            played.value(cell.row, f"CIFAR-10, {quantity}")
            for quantity in ("rounds to target", "s/round", "total s")
        )
        assert total == pytest.approx(rounds * each)


def test_op_and_loop_train_the_same_model(make_engine):
    """Four steps apart by rounding alone, which a step of the filter left out would not be."""

    def trained(**settings) -> torch.Tensor:
        engine: Engine = make_engine(rounds=1, active=1, **settings)
        engine.round(0)
        return engine.board.weights.clone()

    op, loop = trained(filter="fft"), trained(filter="fft", filter_backend="loop")
    start = make_engine(rounds=1, active=1).board.weights
    moved = torch.linalg.vector_norm(op - start)
    assert torch.linalg.vector_norm(op - loop) < 1e-4 * moved
    plain = trained(filter="none")
    assert torch.linalg.vector_norm(op - plain) > 1e-2 * moved


@pytest.mark.exhaustive
def test_low_orders_leave_less_disagreement_than_a_random_one(play):
    """On real gradients of smoke size; the constructed signal is below."""
    played = play("spectral-bias")

    def left(by: str) -> float:
        return played.value(f"alpha 0.1: disagreement left by fft, {by}, %", "full pass")

    for order in OUTERMOST:
        assert left(f"order {order}") < left("random order") - 10
    for order in INNERMOST:
        assert left(f"order {order}") > left("order 0123")
    assert played.value("alpha 0.1: first band, %", "full pass") > 10


@pytest.mark.exhaustive
def test_sources_of_the_gradient_differ_and_one_is_called_nearest(play):
    played = play("spectral-bias")
    shares = [played.value("alpha 0.1: first band, %", c) for c in drift.COLUMNS.values()]
    assert len(set(shares)) == 3
    far, numbers = drift.distances(played.read())
    assert set(far) == set(drift.COLUMNS.values())
    assert numbers == 8
    assert f"comes the source *{min(far, key=far.get)}*" in played.markdown


def test_sources_are_compared_by_the_numbers_that_all_of_them_have():
    """One that lacks the numbers that are far from the paper's is not nearer for that."""
    share, energy = "alpha 0.1: first band, %", "energy of all bands, 0.1 / 100"
    shares = {"full pass": 71.61, "one batch": 2 * 71.61}
    results = {(share, column): Measured({0: value}) for column, value in shares.items()}
    results[energy, "full pass"] = Measured({0: 100 * 2.55})
    far, numbers = drift.distances(results)
    assert (far, numbers) == (pytest.approx({"full pass": 1.0, "one batch": 2.0}), 1)


def layered(seed: int) -> torch.Tensor:
    """A client's disagreement that lives between output channels, with a little noise inside."""
    generator = torch.Generator().manual_seed(seed)
    between = torch.randn(32, 1, 1, 1, generator=generator).cumsum(0)
    # a common mean would be removed in any order
    between -= between.mean()
    return between + 0.1 * torch.randn(32, 16, 3, 3, generator=generator)


@pytest.mark.parametrize("outer", OUTERMOST)
def test_a_layered_signal_is_removed_where_the_output_channel_is_outermost(outer):
    def left(order: str) -> float:
        signals = [layered(seed) for seed in range(4)]
        mean = torch.stack(signals).mean(0)
        apart = [signal - mean for signal in signals]
        before = sum(float(each.square().sum()) for each in apart)
        filter_grads_(apart, ratio=0.05, order=order)
        return sum(float(each.square().sum()) for each in apart) / before

    assert left(outer) < 0.2
    assert left("random:0") > 0.8
    for inner in INNERMOST:
        assert left(outer) < left(inner)


@pytest.mark.exhaustive
def test_parseval_holds_in_the_diagnosis(play):
    played = play("spectral-bias")
    for cell in played.cells:
        (checkpoints,) = drift.found(cell, Archive(played.runs)).values()
        assert all(each.snapshot.parseval_error < 1e-6 for each in checkpoints)
        assert [each.round for each in checkpoints] == [0, 1]


def test_similarities_lie_below_one(play):
    played = play("cka")
    rows = [v["row"] for v in played.results["values"]]
    assert "penultimate: FedAvg" in rows
    assert "layer3: FedAvg" not in rows, "the penultimate layer by another name"
    assert all(0 < played.value(row, "CIFAR-10") < 100 for row in rows)


@pytest.mark.exhaustive
def test_sharpness_is_the_mean_over_diagnosed_rounds(play):
    played = play("mechanism")
    cell = next(cell for cell in played.cells if cell.row == drift.NONE)
    (checkpoints,) = drift.found(cell, Archive(played.runs)).values()
    assert len(checkpoints) == 2
    for label in ("no filter", drift.FFT, drift.CENTRALIZE):
        expected = sum(each.sharpness[label] for each in checkpoints) / 2
        assert played.value(label, "sharpness") == pytest.approx(expected)
    assert played.value(drift.CENTRALIZE, "sharpness") < played.value("no filter", "sharpness")


def reported(name: str, out: Path, earlier: Path) -> str:
    """The report of an experiment without a single run, from an earlier one."""
    flags = [f"--runs={out / 'none'}", f"--out={out}", "--report-only", "--preset=smoke", "--quiet"]
    assert cli.main(["reproduce", name, *flags, f"--with={earlier / 'results.json'}"]) == 0
    return (out / "report.md").read_text("utf-8")


def test_what_was_measured_besides_runs_is_taken_too(play, tmp_path):
    played = play("cka")
    assert "not diagnosed" not in reported("cka", tmp_path, played.report)
    now = json.loads((tmp_path / "results.json").read_text("utf-8"))["experiments"]["cka"]
    assert [v["values"] for v in now["values"]] == [v["values"] for v in played.results["values"]]


@pytest.mark.exhaustive
def test_a_picture_outlives_the_rounds_it_was_drawn_from(play, tmp_path):
    played = play("spectral-bias")
    assert "](spectral-bias.png)" in reported("spectral-bias", tmp_path, played.report)
    drawn = (played.report / "spectral-bias.png").read_bytes()
    assert (tmp_path / "spectral-bias.png").read_bytes() == drawn
