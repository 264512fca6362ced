"""Which tensors are filtered, from structure alone; ``fl/test_models.py`` has the paper's lists."""

from __future__ import annotations

import copy
import importlib.util
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from representatives import only
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils import parametrizations

from specgrad_kernels import FilterPlan, select_layers, tracing
from specgrad_kernels.flow import DENSE, NOT_PATCHES, OTHER
from specgrad_kernels.layers import PRESETS


def _beside(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


nets = _beside("architectures")

SMALL: dict[str, Callable[[], nn.Module]] = {
    "resnet20": nets.resnet20,
    "resnet50": nets.ResNet50,
    "densenet": lambda: nets.DenseNet((2, 3, 2), growth=8),
    "vgg": nets.Vgg,
    "mobilenet_v2": nets.MobileNetV2,
    "mobilenet_with_gates": lambda: nets.MobileNetV2(gate=True),
    "squeezenet": nets.SqueezeNet,
    "convnext": nets.ConvNeXt,
    "convnext_conv_mlp": lambda: nets.ConvNeXt(conv_mlp=True),
    "timm_vgg": nets.TimmVgg,
    "all_convolutional": nets.AllConvolutional,
    "res2net": nets.Res2Net,
    "dla": nets.DeepLayerAggregation,
    "torchvision_vit": nets.TorchvisionViT,
    "timm_vit": nets.TimmViT,
    "linear_patch_vit": nets.LinearPatchViT,
    "untraceable_vit": nets.UntraceableLinearPatchViT,
    "conv_stem_vit": lambda: nets.ConvStemTransformer(scaled_dot_product_attention),
    "linear_attention_vit": lambda: nets.ConvStemTransformer(nets.linear_attention),
    "branching_attention_vit": lambda: nets.ConvStemTransformer(nets.branching_attention),
    "wide_head": nets.WideHeadCnn,
    "femnist_cnn": nets.FemnistCnn,
    "text_cnn": lambda: nets.TextCnn(vocabulary=100),
    "odd": nets.OddNet,
    "flat": nets.FlatNet,
    "shape_dependent": nets.ShapeDependentNet,
    "attentive": nets.AttentiveConvNet,
}


# each way of finding layers: along its modules, along its forward, by a part that can be followed
FEW = ("resnet20", "convnext", "timm_vit", "flat", "shape_dependent")

CONVNEXT = ["stem.0"] + [
    f"stages.{block}.{layer}"
    for block in ("0.0", "0.1", "1.2")
    for layer in ("dwconv", "pwconv1", "pwconv2")
]


def names(model: nn.Module, select: str = "auto") -> list[str]:
    """The modules whose weights are taken."""
    return [name.removesuffix(".weight") for name in select_layers(model, select).taken]


def example_input(name: str) -> torch.Tensor:
    if name == "text_cnn":
        return torch.randint(0, 100, (2, 12))
    return torch.randn(2, 1, 28, 28) if name == "femnist_cnn" else torch.randn(2, 3, 32, 32)


def by_identity(model: nn.Module) -> dict[int, tuple[bool, str]]:
    """For every parameter, whether it is taken and why, without its name."""
    selection = select_layers(model)
    return {
        id(parameter): (name in selection.taken, selection.reasons[name])
        for name, parameter in model.named_parameters()
    }


@pytest.mark.parametrize("name", SMALL)
def test_the_architectures_run(name: str) -> None:
    model = SMALL[name]()
    assert model(example_input(name)).shape[0] == 2


@pytest.mark.parametrize("build", [nets.TorchvisionViT, nets.TimmViT, nets.LinearPatchViT])
def test_a_vision_transformer_gives_its_patch_projection(build: Callable[..., nn.Module]) -> None:
    (parameter,) = select_layers(build(dim=512)).taken.values()
    assert parameter.numel() == 24_576


@pytest.mark.parametrize("norm", [nets.group_norm, nn.BatchNorm2d, nn.InstanceNorm2d])
def test_cifar_resnets_by_name(norm: Callable[[int], nn.Module]) -> None:
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1, 2)]
    expected = ["conv1", *(f"{block}.conv{conv}" for block in blocks for conv in (1, 2))]
    assert names(nets.resnet20(norm)) == expected


@pytest.mark.parametrize("norm", [nets.group_norm, nn.BatchNorm2d])
def test_bottlenecks_are_taken_and_their_shortcuts_are_not(
    norm: Callable[[int], nn.Module],
) -> None:
    blocks = [(stage, block) for stage, n in ((1, 3), (2, 4), (3, 6), (4, 3)) for block in range(n)]
    expected = ["conv1"] + [f"layer{s}.{b}.conv{c}" for s, b in blocks for c in (1, 2, 3)]
    model = nets.ResNet50(norm)
    assert names(model) == expected
    reasons = select_layers(model).reasons
    assert all(
        reasons[f"layer{stage}.0.downsample.0.weight"] == "shortcut projection"
        for stage in (1, 2, 3, 4)
    )


@pytest.mark.parametrize("norm", [nets.group_norm, nn.BatchNorm2d])
def test_densenet_by_name(norm: Callable[[int], nn.Module]) -> None:
    def layers(*convs: str) -> list[str]:
        found = ["features.conv0"]
        for block, depth in enumerate((6, 12, 24, 16), 1):
            for layer in range(1, depth + 1):
                prefix = f"features.denseblock{block}.denselayer{layer}"
                found += [f"{prefix}.{conv}" for conv in convs]
            if "transition" in convs and block < 4:
                found.append(f"features.transition{block}.conv")
        return [name for name in found if not name.endswith(".transition")]

    model = nets.DenseNet(norm=norm)
    assert names(model) == names(model, "paper_default") == layers("conv1", "conv2")
    assert names(model, "spatial_only") == layers("conv2")
    assert names(model, "all_conv") == layers("conv1", "conv2", "transition")
    reasons = select_layers(model).reasons
    assert reasons["features.transition2.conv.weight"] == "transition between stages"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vgg", ["features.0", "features.3", "features.7", "features.10"]),
        (
            "mobilenet_v2",
            ["features.0.0", "features.1.conv.0.0", "features.1.conv.1"]
            + [f"features.{i}.conv.{layer}" for i in (2, 3) for layer in ("0.0", "1.0", "2")]
            + ["features.4.0"],
        ),
        (
            "mobilenet_with_gates",
            ["features.0.0", "features.1.conv.0.0", "features.1.conv.2"]
            + [f"features.{i}.conv.{layer}" for i in (2, 3) for layer in ("0.0", "1.0", "3")]
            + ["features.4.0"],
        ),
        (
            "squeezenet",
            ["features.0"]
            + [
                f"features.{i}.{part}"
                for i in (2, 4)
                for part in ("squeeze", "expand1x1", "expand3x3")
            ],
        ),
        ("convnext", CONVNEXT),
        ("convnext_conv_mlp", CONVNEXT),
        ("timm_vgg", ["features.0", "features.3", "features.7", "features.10"]),
        ("all_convolutional", ["body.0", "body.2", "last.0", "last.2"]),
        ("res2net", ["stem", *(f"layers.{i}.conv{c}" for i in (0, 1) for c in (1, 2, 3))]),
        (
            "dla",
            ["base", *(f"levels.{i}.{c}" for i in (0, 1) for c in ("conv1", "conv2", "root.0"))],
        ),
        ("torchvision_vit", ["conv_proj"]),
        ("timm_vit", ["patch_embed.proj"]),
        ("linear_patch_vit", ["to_patch_embedding.2"]),
        ("untraceable_vit", ["to_patch_embedding.1"]),
        ("conv_stem_vit", ["first"]),
        ("linear_attention_vit", ["first"]),
        ("branching_attention_vit", ["first"]),
        ("wide_head", ["conv1", "conv2"]),
        ("femnist_cnn", ["conv1", "conv2"]),
        ("text_cnn", ["convs.0", "convs.1", "convs.2"]),
        (
            "odd",
            [f"body.{i}.{conv}" for i in (0, 1) for conv in ("shortcut1", "downsample")]
            + ["head", "transition"],
        ),
        ("flat", ["a", "b", "c", "f"]),
        (
            "shape_dependent",
            ["stem", *(f"blocks.{i}.{conv}" for i in (0, 1) for conv in ("one", "two", "three"))],
        ),
        ("attentive", ["stem", "last"]),
    ],
)
def test_other_architectures_by_name(name: str, expected: list[str]) -> None:
    assert names(SMALL[name]()) == expected


@pytest.mark.parametrize(
    ("name", "parameter", "reason"),
    [
        ("resnet20", "conv1.weight", "convolution"),
        ("resnet20", "bn1.bias", "norm or scale"),
        ("resnet20", "layer2.0.shortcut.0.weight", "shortcut projection"),
        ("resnet20", "linear.weight", "classifier head"),
        ("resnet20", "linear.bias", "bias"),
        ("resnet50", "layer1.0.conv1.weight", "1x1 convolution"),
        ("vgg", "features.0.bias", "bias"),
        ("vgg", "classifier.0.weight", "linear layer"),
        ("squeezenet", "classifier.1.weight", "classifier head"),
        ("convnext", "stages.1.1.weight", "transition between stages"),
        ("convnext", "stem.1.weight", "norm or scale"),
        (
            "convnext",
            "stages.0.0.pwconv1.weight",
            "linear layer of a channels-last map: a 1x1 convolution",
        ),
        ("convnext", "stages.0.0.pwconv1.bias", "bias"),
        ("convnext", "head.weight", "classifier head"),
        ("timm_vgg", "pre_logits.fc1.weight", DENSE),
        ("timm_vgg", "pre_logits.fc2.weight", DENSE),
        ("all_convolutional", "classes.weight", "classifier head"),
        ("dla", "levels.1.project.weight", "shortcut projection"),
        ("torchvision_vit", "conv_proj.weight", "patch embedding"),
        ("torchvision_vit", "encoder.0.self_attention.in_proj_weight", "attention weight"),
        ("torchvision_vit", "class_token", OTHER),
        ("conv_stem_vit", "second.weight", NOT_PATCHES),
        ("text_cnn", "embedding.weight", "embedding"),
        ("shape_dependent", "blocks.1.match.0.weight", "shortcut projection (by its shape)"),
        ("attentive", "out.weight", "attention projection"),
        ("flat", "e.weight", "transition between stages"),
        ("odd", "conv.weight", "classifier head"),
        ("branching_attention_vit", "blocks.0.q.weight", "linear layer"),
    ],
)
def test_reasons(name: str, parameter: str, reason: str) -> None:
    assert select_layers(SMALL[name]()).reasons[parameter] == reason


def test_a_gate_says_what_it_is() -> None:
    reasons = select_layers(nets.MobileNetV2(gate=True)).reasons
    for layer in ("fc1", "fc2"):
        assert "globally pooled" in reasons[f"features.1.conv.1.{layer}.weight"]


@pytest.mark.parametrize("select", [*PRESETS, "weight", lambda name, parameter: True])
@pytest.mark.parametrize("name", only(FEW, SMALL))
def test_every_parameter_has_a_reason_and_the_models_order(name: str, select: object) -> None:
    model = SMALL[name]()
    parameters = dict(model.named_parameters())
    selection = select_layers(model, select)
    assert list(selection.reasons) == list(parameters)
    assert all(selection.reasons.values())
    assert list(selection.taken) == [n for n in parameters if n in selection.taken]
    assert all(selection.taken[n] is parameters[n] for n in selection.taken)


@pytest.mark.parametrize("name", only(FEW, SMALL))
def test_the_presets_are_nested(name: str) -> None:
    model = SMALL[name]()
    spatial, auto, every = (set(names(model, s)) for s in ("spatial_only", "auto", "all_conv"))
    convolutions = {n for n, m in model.named_modules() if isinstance(m, (nn.Conv1d, nn.Conv2d))}
    assert spatial <= auto <= every
    assert convolutions <= every


class Renamed:
    """Mixed into a class whose attributes were renamed: finds them under their old names."""

    def __getattr__(self, name: str) -> object:
        aliases = self.__dict__.get("aliases", {})
        return super().__getattr__(aliases.get(name, name))  # type: ignore[misc]


def rename(model: nn.Module, seed: int, shuffle: bool) -> None:
    """Give every attribute and class of ``model`` a meaningless name, in place.

    The parameters inside torch's own layers keep theirs. With ``shuffle``, attributes are also
    registered in another order, except in containers, where order is function.
    """
    draw = random.Random(seed)
    for module in list(model.modules()):
        container = isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
        if type(module).__module__.startswith("torch.nn") and not container:
            continue
        aliases: dict[str, str] = {}
        for registry in (module._modules, module._parameters):
            entries = list(registry.items())
            if shuffle and not container:
                draw.shuffle(entries)
            registry.clear()
            for old, value in entries:
                aliases[old] = f"z{draw.getrandbits(40)}"
                registry[aliases[old]] = value
        if not container:
            module.__dict__["aliases"] = aliases
            module.__class__ = type(f"Z{draw.getrandbits(40)}", (Renamed, type(module)), {})


@settings(max_examples=60)
@given(name=st.sampled_from(sorted(SMALL)), seed=st.integers(0, 2**32))
def test_names_do_not_matter(name: str, seed: int) -> None:
    model = SMALL[name]().eval()
    x = example_input(name)
    before, output = by_identity(model), model(x)
    rename(model, seed, shuffle=False)
    assert by_identity(model) == before
    assert torch.equal(model(x), output)


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(set(SMALL) - {"untraceable_vit", "shape_dependent"})),
    seed=st.integers(0, 2**32),
)
def test_where_forward_can_be_followed_the_order_of_attributes_does_not_matter(
    name: str, seed: int
) -> None:
    model = SMALL[name]().eval()
    before = by_identity(model)
    rename(model, seed, shuffle=True)
    assert by_identity(model) == before


def parts_of(name: str) -> list[nn.Module]:
    model = SMALL[name]()
    children = list(model.children())
    if name == "densenet":
        return [*model.features, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), children[-1]]
    if name == "convnext":
        pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return [model.stem, *model.stages, *pool, model.head]
    if name == "squeezenet":
        return children
    return [*children[:-1], nn.Flatten(), children[-1]]


def test_a_transformer_whose_parts_alone_can_be_followed() -> None:
    model = nets.TimmViT()
    parts = nets.LooksAtItsInput(model.patch_embed, model.blocks, model.norm, model.head)
    assert names(parts) == ["parts.0.proj"]
    without_embedding = nets.LooksAtItsInput(model.blocks, model.norm, model.head)
    with pytest.raises(ValueError, match="takes none"):
        select_layers(without_embedding)


@pytest.mark.parametrize("name", ["densenet", "convnext", "squeezenet", "resnet50", "vgg"])
def test_parts_are_followed_where_the_whole_cannot_be(name: str) -> None:
    parts = parts_of(name)
    followed, not_followed = nn.Sequential(*parts), nets.LooksAtItsInput(*parts)
    not_followed(torch.randn(2, 3, 32, 32))
    with pytest.raises(torch.fx.proxy.TraceError):
        torch.fx.symbolic_trace(not_followed)
    assert {id(p) for p in select_layers(not_followed).taken.values()} == {
        id(p) for p in select_layers(followed).taken.values()
    }


@pytest.mark.parametrize("name", only(FEW, SMALL))
@pytest.mark.parametrize("wrap", [nets.LooksAtItsInput, nn.DataParallel, torch.compile])
def test_wrappers_change_nothing(name: str, wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = SMALL[name]()
    before = by_identity(model)
    assert by_identity(wrap(model)) == before


ARMS: dict[str, tuple[nn.Module, nn.Module, list[str]]] = {
    "pooled shortcut": (
        nn.Sequential(nets.conv3x3(8, 16, 2), nn.ReLU(), nets.conv3x3(16, 16)),
        nn.Sequential(nn.AvgPool2d(2), nets.conv1x1(8, 16), nn.BatchNorm2d(16)),
        ["long.0", "long.2"],
    ),
    "spatial shortcut": (
        nn.Sequential(nets.conv3x3(8, 16, 2), nn.ReLU(), nets.conv3x3(16, 16)),
        nn.Sequential(nets.conv3x3(8, 16, 2), nn.GroupNorm(2, 16)),
        ["long.0", "long.2"],
    ),
    "separable shortcut": (
        nn.Sequential(nets.conv1x1(8, 16), nn.ReLU(), nets.conv3x3(16, 16), nets.conv1x1(16, 16)),
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nets.conv1x1(8, 16)),
        ["long.0", "long.2", "long.3"],
    ),
    "activated 1x1 shortcut": (
        nn.Sequential(nets.conv3x3(8, 16), nn.ReLU(), nets.conv3x3(16, 16)),
        nn.Sequential(nets.conv1x1(8, 16), nn.ReLU()),
        ["long.0", "long.2"],
    ),
    "one convolution beside its shortcut": (
        nn.Sequential(nets.conv3x3(8, 16), nn.BatchNorm2d(16)),
        nn.Sequential(nets.conv1x1(8, 16)),
        ["long.0"],
    ),
    "two activated branches": (
        nn.Sequential(nets.conv3x3(8, 16), nn.ReLU(), nets.conv3x3(16, 16), nn.ReLU()),
        nn.Sequential(nets.conv3x3(8, 16), nn.ReLU()),
        ["long.0", "long.2", "short.0"],
    ),
    "two equal branches": (
        nn.Sequential(nets.conv3x3(8, 16)),
        nn.Sequential(nets.conv3x3(8, 16)),
        ["long.0", "short.0"],
    ),
    "opaque projection": (
        nn.Sequential(nets.conv3x3(8, 16), nn.ReLU(), nets.conv3x3(16, 16)),
        nets.LooksAtItsInput(nets.conv1x1(8, 16), nn.GroupNorm(2, 16)),
        ["long.0", "long.2"],
    ),
}


@pytest.mark.parametrize("case", ARMS)
def test_arms_of_a_sum(case: str) -> None:
    long, short, expected = ARMS[case]
    model = nets.Residual(long, short)
    model(torch.randn(2, 3, 8, 8))
    assert names(model) == ["stem", *expected]


def test_a_block_is_followed_around_a_part_that_cannot_be() -> None:
    long = nn.Sequential(nets.LooksAtItsInput(nets.conv3x3(8, 16)), nets.conv3x3(16, 16))
    model = nn.Sequential(nets.Residual(long, nets.conv1x1(8, 16)), nn.Linear(10, 10))
    selection = select_layers(model)
    assert list(selection.taken) == [
        "0.stem.weight",
        "0.long.0.parts.0.weight",
        "0.long.1.weight",
    ]
    assert selection.reasons["0.short.weight"] == "shortcut projection"


def test_arms_from_different_inputs_are_no_residual() -> None:
    model = nets.TwoStreams()
    model(torch.randn(2, 3, 8, 8), torch.randn(2, 1, 8, 8))
    assert names(model) == ["image.0", "image.2", "mask"]


def test_a_1x1_convolution_before_the_last_pooling_is_no_transition() -> None:
    model = nn.Sequential(
        nets.conv3x3(3, 8),
        nets.Bottleneck(8, 2, 1, nn.BatchNorm2d),
        nets.conv1x1(8, 32),
        nn.BatchNorm2d(32),
        nn.AvgPool2d(8),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    model(torch.randn(2, 3, 8, 8))
    assert names(model) == ["0", "1.conv1", "1.conv2", "1.conv3", "2"]


def test_a_transition_after_a_stage_that_cannot_be_followed() -> None:
    step = nets.transition(16, 8, nn.BatchNorm2d)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    stage = nets.LooksAtItsInput(nets.conv3x3(8, 16))
    model = nn.Sequential(nets.conv3x3(3, 8), stage, step, nets.conv3x3(8, 8), *head)
    model(torch.randn(2, 3, 8, 8))
    assert names(model) == ["0", "1.parts.0", "3"]


@pytest.mark.parametrize(
    "classifier",
    [
        nn.Sequential(nn.Conv2d(16, 32, 7), nn.ReLU(), nn.Conv2d(32, 32, 1), nn.ReLU()),
        nets.ConvClassifier(16, 7, 32),
    ],
)
def test_dense_layers_may_be_written_as_convolutions(classifier: nn.Module) -> None:
    assert names(nets.TimmVgg(classifier)) == names(nets.Vgg())


def plain_kernel(size: int, padding: int = 0, stride: int = 1) -> nn.Module:
    first = nn.Conv2d(16, 32, size, stride, padding)
    return nn.Sequential(first, nn.ReLU(), nn.Conv2d(32, 32, 1), nn.ReLU())


@pytest.mark.parametrize(
    "last", [plain_kernel(3), plain_kernel(7, padding=3), plain_kernel(7, stride=2)]
)
def test_a_last_kernel_that_covers_no_map_is_a_convolution(last: nn.Module) -> None:
    taken = names(nets.TimmVgg(last))
    assert taken == [*names(nets.Vgg()), "pre_logits.0", "pre_logits.2"]


class Reshaped(nn.Module):
    """A linear layer whose input was moved and then treated by ``reshape``."""

    def __init__(self, reshape: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv = nets.conv3x3(3, 8)
        self.mix = nn.Linear(8, 8)
        self.last = nn.Linear(8, 10)
        self.reshape = reshape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mix(self.reshape(self.conv(x).permute(0, 2, 3, 1)))
        return self.last(torch.relu(x).mean(1))


def test_only_a_map_that_stays_one_makes_a_linear_layer_a_convolution() -> None:
    model = Reshaped(lambda x: torch.relu(x) * 2.0)
    assert names(model) == ["conv", "mix", "last"][:2]
    assert names(Reshaped(lambda x: x.flatten(1, 2))) == ["conv"]
    assert names(Reshaped(lambda x: x.mean((1, 2), keepdim=True))) == ["conv"]
    assert names(Reshaped(lambda x: x.permute(0, 1, 3, 2))) == ["conv"]


def test_linear_layers_of_a_transformer_stay_linear_layers() -> None:
    """Channels-last tokens: the same layers beside attention are no convolutions."""
    mixer = nets.ConvNeXtBlock(64, conv_mlp=False)
    model = nets.ConvStemTransformer(scaled_dot_product_attention)
    model.second = nn.Sequential(model.second, mixer)
    model(torch.randn(2, 3, 32, 32))
    assert names(model) == ["first"]
    assert "second.1.pwconv1" not in names(model, "all_conv")
    assert select_layers(model).reasons["second.1.pwconv1.weight"] == "linear layer"


def test_an_identity_shortcut_excludes_nothing() -> None:
    model = nets.Residual(nn.Sequential(nets.conv1x1(8, 8)), nn.Identity(), outputs=8)
    assert names(model) == ["stem", "long.0"]


def test_transposed_convolutions_and_a_dense_output_layer_are_left_out() -> None:
    model = nn.Sequential(
        nets.conv3x3(3, 8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 2, stride=2),
        nn.ConvTranspose2d(8, 8, 2, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 5, 1),
    )
    selection = select_layers(model)
    assert list(selection.taken) == ["0.weight", "2.weight"]
    assert "upsampling" in selection.reasons["3.weight"]
    assert selection.reasons["5.weight"] == "classifier head"
    assert names(model, "all_conv") == ["0", "2", "3", "5"]


def test_a_trunk_without_head_keeps_its_last_convolution() -> None:
    block = nets.Bottleneck(8, 4, 1, nn.BatchNorm2d)
    trunk = nn.Sequential(nets.conv3x3(3, 8), block)
    assert names(trunk) == ["0", "1.conv1", "1.conv2", "1.conv3"]


def test_recurrent_weights_are_left_out() -> None:
    model = nn.ModuleDict({"conv": nn.Conv1d(4, 8, 3), "rnn": nn.GRU(8, 8)})
    selection = select_layers(model)
    assert list(selection.taken) == ["conv.weight"]
    assert selection.reasons["rnn.weight_hh_l0"] == "recurrent weight"


def test_one_convolution_is_a_model() -> None:
    assert list(select_layers(nn.Conv2d(3, 8, 1)).taken) == ["weight"]


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (parametrizations.weight_norm, "0.parametrizations.weight.original1"),
        (parametrizations.spectral_norm, "0.parametrizations.weight.original"),
    ],
)
def test_reparametrised_kernels(wrap: Callable[[nn.Module], nn.Module], expected: str) -> None:
    model = nn.Sequential(wrap(nn.Conv2d(3, 8, 3)), nn.ReLU(), nn.Conv2d(8, 8, 3))
    assert list(select_layers(model).taken) == [expected, "2.weight"]


def test_regex_and_callable_override_the_rule() -> None:
    model = nets.resnet20()
    by_regex = select_layers(model, r"shortcut\.0|^linear")
    assert list(by_regex.taken) == [
        "layer2.0.shortcut.0.weight",
        "layer3.0.shortcut.0.weight",
        "linear.weight",
        "linear.bias",
    ]
    assert by_regex.reasons["linear.bias"] == r"matches 'shortcut\\.0|^linear'"
    assert by_regex.reasons["conv1.weight"].startswith("does not match")
    by_call = select_layers(model, lambda name, parameter: parameter.dim() == 2)
    assert list(by_call.taken) == ["linear.weight"]
    assert by_call.reasons["linear.weight"] == "chosen by the callable"
    assert by_call.reasons["conv1.weight"] == "not chosen by the callable"


def test_bad_selectors_are_refused_in_one_sentence() -> None:
    model = nets.FemnistCnn()
    with pytest.raises(ValueError, match=re.escape("select='conv(' is no regular expression")):
        select_layers(model, "conv(")
    with pytest.raises(ValueError, match=r"select='nothing' takes none of the model's 8 param"):
        select_layers(model, "nothing")
    with pytest.raises(TypeError, match=r"select must be one of auto, .* got 3 of type int"):
        select_layers(model, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module; got dict"):
        select_layers({})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"lazy parameter '0.weight'; run one forward pass"):
        select_layers(nn.Sequential(nn.LazyConv2d(8, 3)))


@pytest.mark.parametrize(
    "model",
    [
        nets.TextTransformer(),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nets.SplitAttention(8, scaled_dot_product_attention), nn.Linear(8, 2)),
    ],
)
def test_a_model_without_convolutions_is_refused_with_a_remedy(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"takes none .* pass a regular expression or a callable"):
        select_layers(model)


def test_frozen_parameters_are_not_taken() -> None:
    model = nets.FemnistCnn()
    model.conv1.requires_grad_(False)
    for select in ("auto", "weight", lambda name, parameter: True):
        selection = select_layers(model, select)
        assert "conv1.weight" not in selection.taken
        assert "conv2.weight" in selection.taken
        assert "requires_grad is False" in selection.reasons["conv1.weight"]
    with pytest.raises(ValueError, match=r"8 of them frozen"):
        select_layers(model.requires_grad_(False))


def test_freezing_one_layer_changes_no_other_decision() -> None:
    model = nets.DenseNet((2, 2), growth=8)
    before = names(model)
    model.features.conv0.requires_grad_(False)
    assert names(model) == before[1:]


def test_tied_parameters_appear_once() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))
    model[2].weight = model[1].weight
    selection = select_layers(model)
    assert list(selection.taken) == ["0.weight", "1.weight"]
    assert "2.weight" not in selection.reasons


def test_a_kernel_shared_by_shortcut_and_main_path_is_taken() -> None:
    short = nets.conv1x1(8, 8)
    long = nn.Sequential(nets.conv3x3(8, 8), nn.ReLU(), short)
    for arms in ((long, nn.Sequential(short)), (nn.Sequential(short), long)):
        model = nets.Residual(*arms, outputs=8)
        model(torch.randn(2, 3, 8, 8))
        taken = {id(parameter) for parameter in select_layers(model).taken.values()}
        assert taken == {id(model.stem.weight), id(long[0].weight), id(short.weight)}


@pytest.mark.parametrize("name", only(FEW, SMALL))
def test_device_dtype_and_memory_format_do_not_matter(name: str) -> None:
    expected = select_layers(SMALL[name]()).reasons
    for move in (
        lambda model: model.to(torch.bfloat16),
        lambda model: model.double(),
        lambda model: model.to("meta"),
        lambda model: model.to(memory_format=torch.channels_last),
    ):
        assert select_layers(move(SMALL[name]())).reasons == expected


@pytest.mark.parametrize("name", only(FEW, SMALL))
def test_selecting_leaves_the_model_and_the_random_state_alone(name: str) -> None:
    model = SMALL[name]()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    attributes = {id(m): dict(m.__dict__) for m in model.modules()}
    generator = torch.get_rng_state()
    in_training = by_identity(model)
    assert by_identity(model.eval()) == in_training
    model.train()
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(m.__dict__ == attributes[id(m)] for m in model.modules())


class Remembers(nn.Module):
    """Stores what it sees in every way a module can."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.second = nn.Conv2d(8, 8, 3)
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0
        self.seen: list[torch.Tensor] = []
        self.nested: dict[str, list[torch.Tensor]] = {"x": []}
        self.branches = [self.first, self.second]
        self.keep = self._keep

    def _keep(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = x
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.count += 1
        self.features = self.branches[0](x)
        self.seen.append(self.features)
        self.nested["x"].append(self.features)
        return self.keep(self.branches[1](self.features))


def test_selecting_leaves_nothing_in_a_model_that_remembers() -> None:
    model = Remembers()
    seen_by_hook: list[object] = []
    model.first.register_forward_hook(lambda module, args, output: seen_by_hook.append(output))
    before = dict(vars(model))
    assert names(model) == ["first.0", "second"]
    assert vars(model) == before
    assert (model.calls, model.count.item(), model.seen, model.nested) == (0, 0, [], {"x": []})
    assert seen_by_hook == []
    copy.deepcopy(model)
    assert model(torch.randn(1, 3, 8, 8)).shape == (1, 8, 4, 4)
    assert len(model.seen) == len(seen_by_hook) == 1


def test_other_threads_may_run_models_while_one_is_traced() -> None:
    """Both threads wait for each other inside the trace."""
    tracing, computed = threading.Event(), threading.Event()
    results: list[object] = []
    other = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2)))
    x = torch.randn(3, 4)

    class Slow(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tracing.set()
            computed.wait()
            return super().forward(x)

    def compute() -> None:
        try:
            tracing.wait()
            results.append(other(x))
        except Exception as error:
            results.append(error)
        finally:
            computed.set()

    worker = threading.Thread(target=compute)
    worker.start()
    selection = select_layers(Slow(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)))
    worker.join()
    assert list(selection.taken) == ["0.weight", "1.weight"]
    assert isinstance(results[0], torch.Tensor), results
    torch.testing.assert_close(results[0], other(x))


def test_one_model_is_traced_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has every chance to begin before the first has ended."""
    events: list[str] = []
    lock, wanted = threading.Lock(), threading.Event()

    class Watched:
        def __enter__(self) -> None:
            if not lock.acquire(blocking=False):
                wanted.set()
                lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    class Slow(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            events.append("begin")
            if threading.current_thread() is not worker:
                worker.start()
                while worker.is_alive() and not wanted.wait(0.01):
                    pass
            events.append("end")
            return super().forward(x)

    monkeypatch.setattr(tracing, "_TRACING", Watched())
    models = [Slow(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)) for _ in range(2)]
    worker = threading.Thread(target=select_layers, args=models[:1])
    assert names(models[1]) == ["0", "1"]
    worker.join()
    assert events == ["begin", "end"] * 2


def test_the_table_lists_every_parameter_and_sums_up() -> None:
    selection = select_layers(nets.FemnistCnn())
    header, *rows, total = str(selection).splitlines()
    assert header.split() == ["parameter", "taken", "shape", "reason"]
    assert [row.split()[0] for row in rows] == list(selection.reasons)
    assert rows[0].split() == ["conv1.weight", "yes", "32x1x5x5", "convolution"]
    assert rows[1].split() == ["conv1.bias", "no", "bias"]
    assert total == "2 of 8 tensors taken, 52,000 weights"


def test_a_plan_filters_what_is_selected() -> None:
    model = nets.resnet20()
    assert FilterPlan.for_model(model).names == list(select_layers(model).taken)
