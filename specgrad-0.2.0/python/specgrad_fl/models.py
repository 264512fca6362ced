"""Models by name, all with GroupNorm of two groups, and plug-ins.

>>> model = build("resnet20", Inputs(num_classes=10, in_channels=3, image_size=32))
>>> sum(p.numel() for p in model.parameters())
272474
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specgrad_fl.errors import ConfigError, suggest
from specgrad_fl.own_code import chosen
from specgrad_fl.seeding import derive


@dataclass(frozen=True)
class Inputs:
    """Shape of the samples and number of classes; ``vocabulary`` is 0 for images."""

    num_classes: int
    in_channels: int = 0
    image_size: int = 0
    vocabulary: int = 0


def build(name: str, inputs: Inputs, options: dict[str, Any] | None = None) -> nn.Module:
    """The model ``name``, or the one that ``module:factory`` returns.

    A factory is called with those of ``num_classes``, ``in_channels``, ``image_size`` and
    ``vocabulary`` that it has parameters for, and with the options.
    """
    options = options or {}
    factory = chosen("model", name, MODELS, "module:factory")
    try:
        parameters = inspect.signature(factory).parameters
    except (ValueError, TypeError) as error:
        raise ConfigError(f"model {name!r}: {error}; name a function or a class") from error
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if not takes_all and option not in parameters:
            allowed = set(parameters) - set(asdict(inputs))
            hint = suggest(option, allowed) if allowed else "it takes none"
            raise ConfigError(f"model {name!r} has no option {option!r}; {hint}")
    known = {k: v for k, v in asdict(inputs).items() if takes_all or k in parameters}
    try:
        model = factory(**{**known, **options})
    except Exception as error:  # whatever a user's factory raises
        reason = str(error) if isinstance(error, (ValueError, TypeError)) else repr(error)
        trace = traceback.format_exc() if ":" in name else ""
        raise ConfigError(f"model {name!r} cannot be built: {reason}", trace) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{name} returned {type(model).__name__}; a torch.nn.Module is needed")
    for part, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ConfigError(
                f"model {name!r} has a lazy layer, whose {part} has no size yet; give the layer "
                "its input size, such as nn.Linear(64, 10) for nn.LazyLinear(10)"
            )
    return model


def build_seeded(name: str, inputs: Inputs, options: dict[str, Any] | None, seed: int) -> nn.Module:
    """The model with initial weights that follow from ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "model"))
        return build(name, inputs, options)


def norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with two groups: no running statistics that clients would have to average."""
    return nn.GroupNorm(2, channels)


def conv3x3(inner: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inner, out, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, activation after the sum."""

    def __init__(self, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(inner, out, stride)
        self.norm1 = norm(out)
        self.conv2 = conv3x3(out, out)
        self.norm2 = norm(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != out:
            projection = nn.Conv2d(inner, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm(out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, stages of basic blocks named ``layer1`` onwards, global average, linear head."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        widths: Sequence[int],
        depths: Sequence[int],
        stem: str = "cifar",
    ) -> None:
        super().__init__()
        inner = widths[0]
        if stem not in ("cifar", "imagenet"):
            raise ValueError(f"stem is {stem!r}; choose cifar or imagenet")
        if stem == "cifar":
            self.conv1 = conv3x3(in_channels, inner)
            self.pool: nn.Module = nn.Identity()
        else:
            self.conv1 = nn.Conv2d(in_channels, inner, 7, 2, padding=3, bias=False)
            self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.norm1 = norm(inner)
        self.stages = []
        for index, (width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
            stride = 1 if index == 1 else 2
            blocks = [BasicBlock(inner, width, stride)]
            blocks += [BasicBlock(width, width, 1) for _ in range(depth - 1)]
            self.add_module(f"layer{index}", nn.Sequential(*blocks))
            self.stages.append(f"layer{index}")
            inner = width
        self.head = nn.Linear(inner, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norm1(self.conv1(x))))
        for stage in self.stages:
            x = getattr(self, stage)(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet8(num_classes: int, in_channels: int = 3) -> ResNet:
    """One block a stage: for trials on a CPU."""
    return ResNet(num_classes, in_channels, (16, 32, 64), (1, 1, 1))


def resnet20(num_classes: int, in_channels: int = 3) -> ResNet:
    """The paper's backbone for small images."""
    return ResNet(num_classes, in_channels, (16, 32, 64), (3, 3, 3))


def resnet18(num_classes: int, in_channels: int = 3, stem: str = "cifar") -> ResNet:
    """``stem="cifar"`` is 3x3 without pooling, ``"imagenet"`` 7x7/2 with max-pooling."""
    return ResNet(num_classes, in_channels, (64, 128, 256, 512), (2, 2, 2, 2), stem)


def wrn56_2(num_classes: int, in_channels: int = 3) -> ResNet:
    """ResNet-56 at twice the width, with activation after the sum."""
    return ResNet(num_classes, in_channels, (32, 64, 128), (9, 9, 9))


class DenseLayer(nn.Module):
    """A 1x1 bottleneck and a 3x3 convolution whose output is appended to the input."""

    def __init__(self, inner: int, growth: int) -> None:
        super().__init__()
        self.norm1 = norm(inner)
        self.conv1 = nn.Conv2d(inner, 4 * growth, 1, bias=False)
        self.norm2 = norm(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        y = self.conv2(F.relu(self.norm2(y)))
        return torch.cat([x, y], 1)


class Transition(nn.Module):
    """Halves channels and resolution."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm = norm(inner)
        self.conv = nn.Conv2d(inner, inner // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x))), 2)


class DenseNet121(nn.Module):
    """Dense blocks ``dense1`` to ``dense4`` with transitions ``trans1`` to ``trans3`` between:
    growth 32, blocks of 6, 12, 24 and 16 layers, compression one half."""

    def __init__(self, num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        growth, depths = 32, (6, 12, 24, 16)
        width = 2 * growth
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.body = nn.Sequential()
        for index, depth in enumerate(depths, start=1):
            layers = [DenseLayer(width + growth * j, growth) for j in range(depth)]
            self.body.add_module(f"dense{index}", nn.Sequential(*layers))
            width += growth * depth
            if index < len(depths):
                self.body.add_module(f"trans{index}", Transition(width))
                width //= 2
        self.norm = norm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.body(self.conv1(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    """Multi-head self-attention without biases on query, key and value."""

    def __init__(self, dim: int, heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        y = self.out(y.transpose(1, 2).reshape(batch, tokens, -1))
        return F.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a LayerNorm and with a residual."""

    def __init__(self, dim: int, heads: int, head_dim: int, mlp: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, head_dim, dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(mlp, dim),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches by a convolution, learned positions, six blocks, head on the class token.

    Take ``patch=8`` for 64 x 64 images.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        image_size: int = 32,
        patch: int = 4,
        dropout: float = 0.1,
        dim: int = 512,
        heads: int = 8,
        mlp: int = 512,
    ) -> None:
        super().__init__()
        if image_size % patch:
            raise ValueError(f"patch {patch} does not divide the image size {image_size}")
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (image_size // patch) ** 2 + 1, dim) * 0.02)
        self.patch_embed = nn.Conv2d(in_channels, dim, patch, stride=patch)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(dim, heads, 64, mlp, dropout) for _ in range(6)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        x = self.blocks(self.dropout(x + self.positions))
        return self.head(self.norm(x[:, 0]))

    def layer_groups(self) -> list[list[str]]:
        """Parameters that FedLWS scales together: embedding, each block, norm, head."""
        groups: dict[str, list[str]] = {}
        for name, _ in self.named_parameters():
            parts = name.split(".")
            if parts[0] == "blocks":
                key = f"blocks.{parts[1]}"
            else:
                key = parts[0] if parts[0] in ("norm", "head") else "embedding"
            groups.setdefault(key, []).append(name)
        return list(groups.values())


class FemnistCNN(nn.Module):
    """Two 5x5 convolutions with pooling, a wide hidden layer, a linear head: as in LEAF."""

    def __init__(self, num_classes: int, in_channels: int = 1, image_size: int = 28) -> None:
        super().__init__()
        side = image_size // 4
        if side < 1:
            raise ValueError(f"image size {image_size} is too small to be halved twice")
        self.conv1 = nn.Conv2d(in_channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.hidden = nn.Linear(64 * side * side, 2048)
        self.head = nn.Linear(2048, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(F.relu(self.hidden(x.flatten(1))))


class TextCNN(nn.Module):
    """Embedding, convolutions of three widths over time, maximum over time, linear head."""

    def __init__(self, num_classes: int, vocabulary: int = 30_000, dropout: float = 0.5) -> None:
        super().__init__()
        widths, channels = (3, 4, 5), 128
        self.embedding = nn.Embedding(vocabulary or 30_000, channels, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(channels, channels, width) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels * len(widths), num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        longest = max(conv.kernel_size[0] for conv in self.convs)  # type: ignore[index]
        x = F.pad(x, (0, max(0, longest - x.shape[-1])))
        features = [F.relu(conv(x)).amax(-1) for conv in self.convs]
        return self.head(self.dropout(torch.cat(features, 1)))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "wrn56_2": wrn56_2,
    "densenet121": DenseNet121,
    "vit": ViT,
    "vit_small": partial(ViT, dim=192, heads=3, mlp=384),  # for a CPU
    "femnist_cnn": FemnistCNN,
    "textcnn": TextCNN,
}
