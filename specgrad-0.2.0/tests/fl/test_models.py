"""Parameter counts and filtered tensors against the tables of the specification."""

from __future__ import annotations

import pytest
import torch
from specgrad_fl.errors import ConfigError
from specgrad_fl.models import MODELS, Inputs, build, build_seeded
from torch import nn

from specgrad_kernels import FilterPlan, FilterSpec, select_layers

CIFAR = Inputs(num_classes=10, in_channels=3, image_size=32)
TEXT = Inputs(num_classes=10, vocabulary=30_000)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "options", "expected"),
    [
        ("resnet20", 10, {}, 272_474),
        ("resnet20", 100, {}, 278_324),
        ("resnet20", 200, {}, 284_824),
        ("resnet18", 10, {}, 11_173_962),
        ("resnet18", 100, {}, 11_220_132),
        ("resnet18", 200, {}, 11_271_432),
        ("resnet18", 10, {"stem": "imagenet"}, 11_181_642),
        ("wrn56_2", 10, {}, 3_412_394),
        ("wrn56_2", 100, {}, 3_424_004),
        ("wrn56_2", 200, {}, 3_436_904),
        ("densenet121", 10, {}, 6_956_298),
        ("densenet121", 100, {}, 7_048_548),
        ("densenet121", 200, {}, 7_151_048),
        ("vit", 10, {}, 9_523_722),
        ("vit", 100, {}, 9_569_892),
        ("vit_small", 10, {}, 1_803_082),
    ],
)
def test_parameter_count_on_colour_images(name, classes, options, expected):
    with torch.device("meta"):
        model = build(name, Inputs(classes, 3, 32), options)
    assert count(model) == expected


@pytest.mark.parametrize(
    ("name", "inputs", "options", "expected"),
    [
        ("resnet20", Inputs(62, 1, 28), {}, 275_566),
        ("resnet20", Inputs(8, 3, 28), {}, 272_344),
        ("femnist_cnn", Inputs(62, 1, 28), {}, 6_603_710),
        ("textcnn", TEXT, {}, 4_040_842),
        ("vit", Inputs(200, 3, 64), {"patch": 8}, 9_694_920),
    ],
)
def test_parameter_count_of_other_inputs(name, inputs, options, expected):
    with torch.device("meta"):
        assert count(build(name, inputs, options)) == expected


def test_textcnn_without_embedding():
    model = build("textcnn", TEXT)
    assert count(model) - model.embedding.weight.numel() == 200_842


def stages(first, *rest):
    """Lengths of a residual network's filtered tensors: stem, then (entry, other, count)."""
    lengths = [first]
    for entry, other, others in rest:
        lengths += [entry] + [other] * others
    return lengths


FILTERED = {
    "resnet20": stages(432, (2304, 2304, 5), (4608, 9216, 5), (18432, 36864, 5)),
    "resnet18": stages(
        1728, (36864, 36864, 3), (73728, 147456, 3), (294912, 589824, 3), (1179648, 2359296, 3)
    ),
    "wrn56_2": stages(864, (9216, 9216, 17), (18432, 36864, 17), (73728, 147456, 17)),
    "densenet121": [
        1728,
        *(
            length
            for start, depth in ((64, 6), (128, 12), (256, 24), (512, 16))
            for j in range(depth)
            for length in (128 * (start + 32 * j), 36864)
        ),
    ],
    "vit": [24576],
    "vit_small": [9216],
    "femnist_cnn": [800, 51200],
    "textcnn": [49152, 65536, 81920],
}
TOTALS = {
    "resnet20": (19, 267_696),
    "resnet18": (17, 10_987_200),
    "wrn56_2": (55, 3_392_352),
    "densenet121": (117, 6_174_400),
    "vit": (1, 24_576),
}


def inputs_of(name: str) -> Inputs:
    return {"femnist_cnn": Inputs(62, 1, 28), "textcnn": TEXT}.get(name, CIFAR)


@pytest.mark.parametrize("name", FILTERED)
def test_filtered_tensors(name):
    taken = select_layers(build(name, inputs_of(name))).taken
    assert [p.numel() for p in taken.values()] == FILTERED[name]


@pytest.mark.parametrize("name", TOTALS)
def test_tables_agree_with_each_other(name):
    assert (len(FILTERED[name]), sum(FILTERED[name])) == TOTALS[name]


@pytest.mark.parametrize(
    ("name", "cutoffs"),
    [
        ("resnet20", [10, 57, 115, 230, 460, 921]),
        ("femnist_cnn", [20, 1280]),
        ("textcnn", [1228, 1638, 2048]),
        ("vit", [614]),
        ("vit_small", [230]),
    ],
)
def test_cutoffs(name, cutoffs):
    plan = FilterPlan.for_model(build(name, inputs_of(name)), FilterSpec(ratio=0.05))
    assert sorted({layer.cutoff for layer in plan.layers}) == cutoffs


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward(name):
    inputs = inputs_of(name)
    model = build(name, inputs)
    if inputs.vocabulary:
        x = torch.randint(0, 30_000, (2, 7))
    else:
        x = torch.randn(2, inputs.in_channels, inputs.image_size, inputs.image_size)
    logits = model(x)
    assert logits.shape == (2, inputs.num_classes)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert not list(model.buffers())


@pytest.mark.parametrize("name", ["resnet8", "resnet20", "resnet18", "wrn56_2", "densenet121"])
def test_every_norm_has_two_groups(name):
    norms = [m for m in build(name, CIFAR).modules() if isinstance(m, nn.GroupNorm)]
    assert norms
    assert {m.num_groups for m in norms} == {2}


def test_digits_are_large_enough_for_the_small_networks():
    for name in ("resnet8", "resnet20"):
        assert build(name, Inputs(10, 1, 8))(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_weights_follow_from_the_seed_alone():
    torch.manual_seed(1)
    first = build_seeded("resnet8", CIFAR, {}, seed=5)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = build_seeded("resnet8", CIFAR, {}, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    other = build_seeded("resnet8", CIFAR, {}, seed=6)
    assert not torch.equal(first.conv1.weight, other.conv1.weight)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet21", {}, "did you mean 'resnet20'"),
        ("resnet18", {"stm": "cifar"}, "did you mean 'stem'"),
        ("resnet18", {"stem": "tiny"}, "choose cifar or imagenet"),
        ("vit", {"patch": 5}, "does not divide"),
        ("no_such_module_here:make", {}, "cannot import"),
        ("math:make", {}, "math has no 'make'"),
        ("os:getcwd", {}, "os:getcwd returned str; a torch.nn.Module is needed"),
        ("builtins:dict", {}, "name a function or a class"),
        ("math:pi", {}, "name a function or a class"),
    ],
)
def test_refusals(name, options, message):
    with pytest.raises(ConfigError, match=message):
        build(name, CIFAR, options)
