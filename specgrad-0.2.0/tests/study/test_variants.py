"""Variants and relatives, each by what it reduces to."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import specgrad_data
import torch
import torch.nn.functional as F
from specgrad_fl import prepare
from specgrad_fl.config import Config
from specgrad_fl.methods import Federation
from specgrad_fl.models import resnet8
from specgrad_fl.vectors import FlatModel
from specgrad_study import directions, fleet, variants

SMALL: dict[str, Any] = {
    "clients": 12, "active": 2, "rounds": 4, "epochs": 1, "workers": 1, "eval_every": 4,
    "weight_decay": 0.0,
}  # fmt: skip
digits = cache(lambda: specgrad_data.load("digits"))
FLAT = FlatModel(resnet8(10, 1))
CONVOLUTIONS = [n for n in FLAT.segments if "conv" in n]


def ended(rounds: int = 1, **settings: Any) -> torch.Tensor:
    """Weights after some rounds."""
    config = Config(**{**SMALL, **settings})
    partition = prepare.divide(config, digits())
    with fleet.trial(config, digits(), partition) as tried:
        for number in range(rounds):
            tried.round(number)
        return tried.board.weights.clone()


@cache
def begun() -> torch.Tensor:
    return ended(0)


@cache
def plain(kind: str) -> torch.Tensor:
    return ended(filter=kind)


def method(name: str, kind: str = "none", rounds: int = 1, **options: Any) -> torch.Tensor:
    settings = {"method": f"specgrad_study.variants:{name}", "filter": kind, "options": options}
    return ended(rounds, **settings)


def moved(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    return FLAT.named(weights - begun())


def test_a_strength_of_nothing_is_fedavg_and_of_one_the_filter():
    assert method("Damped", "centralize", strength=0.0).equal(plain("none"))
    assert method("Damped", "centralize", strength=1.0).equal(plain("centralize"))
    half = method("Damped", "centralize", strength=0.5)
    assert not half.equal(plain("none"))
    assert not half.equal(plain("centralize"))


def test_half_of_the_rounds_begins_with_a_filtered_one():
    assert method("Half", "centralize", of="rounds").equal(plain("centralize"))
    twice = method("Half", "centralize", rounds=2, of="rounds")
    assert not twice.equal(ended(2, filter="centralize"))
    half = method("Half", "centralize", of="steps")
    assert not half.equal(plain("centralize"))
    assert not half.equal(plain("none"))


def test_half_of_the_clients_are_the_even_ones():
    one = {"clients": 1, "active": 1, "partition": "iid", "batch_size": 600}
    half = {"method": "specgrad_study.variants:Half", "options": {"of": "clients"}}
    filtered = ended(**one, **half, filter="centralize")
    assert filtered.equal(ended(**one, filter="centralize"))
    odd = variants.Strength(lambda: None, torch.zeros(1), 0.0)
    local = SimpleNamespace(filter_=odd, g=odd.g, client=3, steps=0, sent={"rounds": odd.g})
    local.backward = lambda: odd.g
    method = variants.Half(variants.Half.Options(of="clients"), None)
    for client, strength in ((3, 0.0), (4, 1.0)):
        local.client = client
        method.gradient(local)
        assert odd.value == strength


def test_fedfft_without_a_filter_is_fedsam_and_filters_the_perturbation_alone():
    sam = ended(method="fedsam")
    assert method("FedFFT").equal(sam)
    assert method("FedFFT", rho=0.0, kind="fft").equal(plain("none"))
    assert not method("FedFFT", "fft").equal(sam)


def test_a_server_that_centralises_what_is_centralised_changes_nothing():
    both = method("ServerCentralize", "centralize")
    torch.testing.assert_close(both, plain("centralize"), rtol=0, atol=1e-6)
    alone = moved(method("ServerCentralize"))
    for name in CONVOLUTIONS:
        assert alone[name].flatten(1).mean(1).abs().max() < 1e-7
    assert alone["head.weight"].equal(moved(plain("none"))["head.weight"])


def test_gc_fed_is_centralize_but_for_the_head():
    found = moved(method("ServerCentralize", "centralize", layers=variants.HEAD))
    expected = moved(plain("centralize"))
    for name in CONVOLUTIONS:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-7)
    head = expected["head.weight"]
    torch.testing.assert_close(
        found["head.weight"], head - head.mean(1, keepdim=True), rtol=0, atol=1e-6
    )


def test_means_are_put_back_at_the_end_of_a_round():
    found = moved(method("MeansBack"))
    assert not found["conv1.weight"].equal(torch.zeros_like(found["conv1.weight"]))
    for name in CONVOLUTIONS:
        assert found[name].flatten(1).mean(1).abs().max() < 1e-7


def test_laplacian_smoothing_solves_its_equation():
    torch.testing.assert_close(method("Laplacian", sigma=0.0), plain("none"), rtol=0, atol=1e-5)
    federation = Federation(
        torch.ones(2), torch.ones(2, 10), torch.ones(10), FLAT.size, (), server_lr=1.0
    )
    smoothing = variants.Laplacian(variants.Laplacian.Options(sigma=1.0), federation)
    before = torch.randn(FLAT.size, generator=torch.Generator().manual_seed(0))
    after = FLAT.named(smoothing.project(before))["layer1.0.conv1.weight"].flatten().double()
    neighbours = after.roll(1) + after.roll(-1)
    there = FLAT.named(before)["layer1.0.conv1.weight"].flatten().double()
    torch.testing.assert_close(3 * after - neighbours, there, rtol=0, atol=1e-3)


def test_fedmuon_takes_orthogonal_steps():
    still = moved(method("FedMuon", alpha=1.0))
    assert all(still[name].abs().max() == 0 for name in CONVOLUTIONS)
    one = {"epochs": 1, "batch_size": 10_000, "clients": 1, "active": 1, "partition": "iid"}
    settings = {"method": "specgrad_study.variants:FedMuon", "clip": 0.0, **one}
    options = {"alpha": 0.0, "rate": 0.05}
    change = FLAT.named(ended(options=options, **settings) - ended(0, **one))
    values = torch.linalg.svdvals(change["layer2.0.conv2.weight"].flatten(1))
    torch.testing.assert_close(values, torch.full_like(values, 0.1 * 0.05), rtol=1e-3, atol=0)


def directed(kind: str, **options: Any) -> dict[str, Any]:
    return {
        "model": "specgrad_study.directions:resnet8",
        "model_options": {"direction": kind, **options},
    }


def test_the_direction_of_all_ones_is_centralize():
    found = ended(**directed("ones"))
    torch.testing.assert_close(found, plain("centralize"), rtol=0, atol=1e-5)


def test_the_mean_patch_is_that_of_all_places():
    layer = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1)
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    every = F.unfold(x, 3, padding=1, stride=2).mean((0, 2))
    torch.testing.assert_close(directions.mean_patch(layer, x), every)


def buffers(rounds: int, **options: Any) -> torch.Tensor:
    config = Config(**{**SMALL, **directed("first", **options)})
    with fleet.trial(config, digits(), prepare.divide(config, digits())) as tried:
        for number in range(rounds):
            tried.round(number)
        return tried.board.buffers.clone()


def test_first_directions_are_kept_and_every_round_renews_them():
    one, two, renewed = buffers(1), buffers(2), buffers(2, every=1)
    assert one[0] == pytest.approx(1)
    assert two[0] == pytest.approx(2)
    torch.testing.assert_close(one[1:], two[1:], rtol=0, atol=1e-6)
    assert (renewed[1:] - one[1:]).abs().max() > 1e-3


def test_the_current_direction_is_that_of_the_batch():
    model = directions.resnet8(10, 1, direction="current").train()
    x = torch.rand(6, 1, 8, 8)
    F.cross_entropy(model(x), torch.arange(6)).backward()
    unit = F.normalize(directions.mean_patch(model.conv1, x), dim=0)
    along = model.conv1.weight.grad.flatten(1) @ unit
    assert along.abs().max() < 1e-6 * model.conv1.weight.grad.norm()


def test_an_unknown_direction_is_refused():
    with pytest.raises(ValueError, match="choose one of current, first, random, ones"):
        directions.resnet8(10, direction="up")
