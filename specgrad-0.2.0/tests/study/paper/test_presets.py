"""Presets: runs that are shared stay shared, and the paper's protocol is the paper's."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from specgrad_fl.models import Inputs, build
from specgrad_fl.runs import run_name
from specgrad_study.paper.ablations import RESNET_LAYERS, VIT_LAYERS
from specgrad_study.paper.presets import PRESETS
from specgrad_study.paper.registry import EXPERIMENTS, find

from specgrad_kernels import select_layers


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (["table3"], ["strategies"]),
        (["Table-III", "strategies"], ["strategies"]),
        (["table10", "fig7"], ["femnist", "ratio"]),
        (["figure4", "figure5"], ["curves"]),
    ],
)
def test_experiments_by_their_number_in_the_paper(asked, names):
    assert [experiment.name for experiment in find(asked)] == names


def names_of(experiment: str, preset: str) -> dict[str, str]:
    cells = EXPERIMENTS[experiment].cells(PRESETS[preset]())
    return {cell.row: run_name(cell.config) for cell in cells if cell.config is not None}


def test_finished_cpu_runs_stay_valid():
    """These names belong to runs that were made: a change here would orphan them."""
    strategies = names_of("strategies", "cpu")
    assert strategies["None (FedAvg)"] == "cifar10-resnet8-fedavg-none-s0-0c467dba"
    assert strategies["Low-frequency suppression"] == "cifar10-resnet8-fedavg-fft-s0-d6c5531c"
    assert strategies["High-frequency suppression"].endswith("fft_high-s0-e9d20c67")
    assert strategies["Local average pooling detrend"].endswith("lap-s0-89f63c6d")


def test_equal_cells_share_a_run():
    ours = names_of("strategies", "cpu")["Low-frequency suppression"]
    assert names_of("orders", "cpu")["0123"] == ours
    assert names_of("layers", "cpu")["ResNet-20: all conv"] == ours
    assert names_of("ratio", "cpu")["0.05"] == ours
    assert names_of("centralised", "cpu")["alpha 0.1: + FFT"] == ours
    assert names_of("time", "cpu")["FedAvg + FFT"] == ours


def test_the_papers_protocol():
    base = PRESETS["paper"]().base
    assert (base.clients, base.active, base.rounds, base.epochs) == (100, 10, 300, 5)
    assert (base.batch_size, base.weight_decay, base.ratio) == (50, 1e-3, 0.05)
    assert base.partition_mode == "refill"
    for experiment in EXPERIMENTS.values():
        cells = experiment.cells(PRESETS["paper"]())
        assert all(cell.config is not None for cell in cells), experiment.name
        assert {cell.seeds for cell in cells} == {(0, 1, 2)}


def test_the_paper_evaluates_every_round():
    """Its rounds to a target are no multiples of five."""
    assert PRESETS["paper"]().base.eval_every == 1


@pytest.mark.parametrize("preset", ["paper", "cpu"])
def test_every_writer_is_a_client(preset):
    """All writers train and all are tested: clients = 0 takes every one of the sample."""
    cells = EXPERIMENTS["femnist"].cells(PRESETS[preset]())
    assert {cell.config.clients for cell in cells} == {0}
    if preset == "paper":
        assert {cell.config.data_options["fraction"] for cell in cells} == {0.05}
    by_column = {cell.column: cell.config.active for cell in cells}
    writers = PRESETS[preset]().writers
    assert by_column == {f"active ratio {r:g}": round(r * writers) for r in (0.05, 0.1)}


def test_the_ratios_of_the_paper_are_there():
    rows = {cell.row for cell in EXPERIMENTS["ratio"].cells(PRESETS["cpu"]())}
    assert {"0.01", "0.05", "0.1", "0.15", "0.2", "0.5"} <= rows


def test_the_supplement_has_an_experiment():
    cells = EXPERIMENTS["supplement"].cells(PRESETS["paper"]())
    assert {cell.config.dataset for cell in cells} == {"bloodmnist", "yahoo_answers"}
    (text,) = {cell.config.model for cell in cells if cell.config.dataset == "yahoo_answers"}
    assert text == "textcnn"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_seeds_reach_every_experiment(name):
    """--seeds replaces the seeds of cells, and each cell asks for a configuration of each."""
    for cell in EXPERIMENTS[name].cells(PRESETS["smoke"]()):
        more = replace(cell, seeds=(3, 4))
        assert [c.seed for c in more.configs()] == ([3, 4] if cell.config else [])


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_cells_have_a_place_of_their_own(name, preset):
    cells = EXPERIMENTS[name].cells(PRESETS[preset]())
    places = [cell.place for cell in cells]
    assert len(places) == len(set(places)) > 0


@pytest.mark.parametrize("preset", PRESETS)
def test_every_model_can_be_built(preset):
    cells = [c for each in EXPERIMENTS.values() for c in each.cells(PRESETS[preset]())]
    models = {cell.config.model for cell in cells if cell.config is not None}
    for name in models:
        build(name, Inputs(10, 3, 32, vocabulary=50))


def test_the_model_without_norms_differs_from_resnet8_by_them_alone():
    plain, usual = (
        {name: p.shape for name, p in build(model, Inputs(10, 3, 16)).named_parameters()}
        for model in ("specgrad_study.paper.plain:resnet8", "resnet8")
    )
    assert set(usual) - set(plain) == {n for n in usual if "norm" in n or "shortcut.1" in n}
    assert plain == {name: usual[name] for name in plain}


def taken(model, settings) -> set[str]:
    return set(select_layers(model, settings.get("filter_select", "auto")).taken)


@pytest.mark.parametrize("name", ["resnet8", "resnet20"])
def test_stages_of_a_resnet_add_up(name):
    model = build(name, Inputs(10, 3, 32))
    sets = {row: taken(model, s) for row, s in RESNET_LAYERS.items() if s}
    stages = [sets[f"{part} conv"] for part in ("shallow", "middle", "deep")]
    assert set.union(*stages) == sets["all conv"]
    assert sum(map(len, stages)) == len(sets["all conv"])
    assert sets["all conv + head"] == sets["all conv"] | sets["classifier head"]
    assert sets["classifier head"] == {"head.weight"}


def test_parts_of_a_vit():
    model = build("vit_small", Inputs(10, 3, 32))
    sets = {row: taken(model, s) for row, s in VIT_LAYERS.items() if s}
    assert sets["patch embedding"] == {"patch_embed.weight"}
    assert len(sets["attention"]) == len(sets["MLP"]) == 2 * 6
    assert not any(re.search("norm|bias", name) for name in sets["all eligible weights"])
    parts = ("patch embedding", "attention", "MLP", "classifier head")
    assert sets["all eligible weights"] == set.union(*(sets[part] for part in parts))
