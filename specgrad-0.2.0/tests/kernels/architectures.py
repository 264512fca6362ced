"""Architectures by structure: small replicas in the naming styles of the common libraries.

Every model here runs; the tests read which of its tensors are filtered.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Norm = Callable[[int], nn.Module]


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1, stride, bias=False)


class CifarBlock(nn.Module):
    """CIFAR style: functional activations, the shortcut a Sequential that may be empty."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn1 = norm(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.bn2 = norm(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(conv1x1(inputs, outputs, stride), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return functional.relu(out)


class CifarResNet(nn.Module):
    def __init__(
        self, widths: list[int], blocks: int, norm: Norm = group_norm, classes: int = 10
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(3, widths[0])
        self.bn1 = norm(widths[0])
        inputs = widths[0]
        for stage, width in enumerate(widths, 1):
            layers = []
            for index in range(blocks):
                stride = 2 if stage > 1 and index == 0 else 1
                layers.append(CifarBlock(inputs, width, stride, norm))
                inputs = width
            setattr(self, f"layer{stage}", nn.Sequential(*layers))
        self.stages = len(widths)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        for stage in range(1, self.stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.linear(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet20(norm: Norm = group_norm) -> nn.Module:
    return CifarResNet([16, 32, 64], 3, norm)


class Bottleneck(nn.Module):
    """torchvision style: module activations, ``downsample`` a Sequential or None."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = conv1x1(inputs, width)
        self.bn1 = norm(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn2 = norm(width)
        self.conv3 = conv1x1(width, outputs)
        self.bn3 = norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv1x1(inputs, outputs, stride), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet50(nn.Module):
    """The torchvision layout at a quarter of the width."""

    def __init__(self, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(16)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = 16
        for stage, (width, depth) in enumerate(((16, 3), (32, 4), (64, 6), (128, 3)), 1):
            blocks = []
            for index in range(depth):
                stride = 2 if stage > 1 and index == 0 else 1
                blocks.append(Bottleneck(inputs, width, stride, norm))
                inputs = 4 * width
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int, norm: Norm) -> None:
        super().__init__()
        self.norm1 = norm(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = conv1x1(inputs, 4 * growth)
        self.norm2 = norm(4 * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(4 * growth, growth)

    def forward(self, features: list[Tensor]) -> Tensor:
        out = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        return self.conv2(self.relu2(self.norm2(out)))


class DenseBlock(nn.ModuleDict):
    """torchvision style: a dictionary of layers that collects their outputs."""

    def __init__(self, inputs: int, growth: int, depth: int, norm: Norm) -> None:
        super().__init__()
        for index in range(depth):
            self[f"denselayer{index + 1}"] = DenseLayer(inputs + index * growth, growth, norm)

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


def transition(inputs: int, outputs: int, norm: Norm) -> nn.Module:
    layers = nn.Sequential()
    layers.add_module("norm", norm(inputs))
    layers.add_module("relu", nn.ReLU(inplace=True))
    layers.add_module("conv", conv1x1(inputs, outputs))
    layers.add_module("pool", nn.AvgPool2d(2, 2))
    return layers


class DenseNet(nn.Module):
    def __init__(
        self, depths: tuple[int, ...] = (6, 12, 24, 16), growth: int = 32, norm: Norm = group_norm
    ) -> None:
        super().__init__()
        channels = 2 * growth
        self.features = nn.Sequential()
        self.features.add_module("conv0", conv3x3(3, channels))
        for index, depth in enumerate(depths, 1):
            block = DenseBlock(channels, growth, depth, norm)
            self.features.add_module(f"denseblock{index}", block)
            channels += depth * growth
            if index < len(depths):
                step = transition(channels, channels // 2, norm)
                self.features.add_module(f"transition{index}", step)
                channels //= 2
        self.features.add_module("norm5", norm(channels))
        self.classifier = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.features(x), inplace=True)
        out = functional.adaptive_avg_pool2d(out, (1, 1))
        return self.classifier(torch.flatten(out, 1))


class Vgg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in (8, 16):
            for _ in range(2):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                inputs = width
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(16 * 4, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class ConvNormActivation(nn.Sequential):
    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        padding = kernel // 2
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU6(),
        )


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, 4, 1)
        self.fc2 = nn.Conv2d(4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(functional.relu(self.fc1(self.avgpool(x))))
        return torch.sigmoid(scale) * x


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expand: int, gate: bool) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers.append(ConvNormActivation(inputs, hidden, 1))
        layers.append(ConvNormActivation(hidden, hidden, 3, stride, groups=hidden))
        if gate:
            layers.append(SqueezeExcite(hidden))
        layers += [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers)
        self.use_res_connect = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, gate: bool = False) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNormActivation(3, 8, 3, 2),
            InvertedResidual(8, 8, 1, 1, gate),
            InvertedResidual(8, 12, 2, 6, gate),
            InvertedResidual(12, 12, 1, 6, gate),
            ConvNormActivation(12, 32, 1),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


class Fire(nn.Module):
    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.squeeze(x))
        wide = [functional.relu(self.expand1x1(x)), functional.relu(self.expand3x3(x))]
        return torch.cat(wide, 1)


class SqueezeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2),
            nn.ReLU(),
            Fire(16, 4, 8),
            nn.MaxPool2d(2),
            Fire(16, 4, 8),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Conv2d(16, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


class LayerNorm2d(nn.Module):
    """A channels-first layer norm written out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNeXtBlock(nn.Module):
    """The two layers after the depthwise one are linear on moved channels, or 1x1 convolutions."""

    def __init__(self, channels: int, conv_mlp: bool) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.conv_mlp = conv_mlp
        self.norm = LayerNorm2d(channels) if conv_mlp else nn.LayerNorm(channels)
        self.pwconv1 = self.layer(channels, 4 * channels)
        self.pwconv2 = self.layer(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 1e-6))

    def layer(self, inputs: int, outputs: int) -> nn.Module:
        return nn.Conv2d(inputs, outputs, 1) if self.conv_mlp else nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out = self.dwconv(x)
        out = self.norm(out if self.conv_mlp else out.permute(0, 2, 3, 1))
        out = self.pwconv2(
            functional.dropout(functional.gelu(self.pwconv1(out)), 0.1, self.training)
        )
        out = out if self.conv_mlp else torch.permute(out, (0, 3, 1, 2))
        return x + out * self.gamma.view(1, -1, 1, 1)


class ConvNeXt(nn.Module):
    def __init__(self, conv_mlp: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), LayerNorm2d(8))
        first = (ConvNeXtBlock(8, conv_mlp), ConvNeXtBlock(8, conv_mlp))
        downsample = (LayerNorm2d(8), nn.Conv2d(8, 16, 2, stride=2))
        self.stages = nn.Sequential(
            nn.Sequential(*first), nn.Sequential(*downsample, ConvNeXtBlock(16, conv_mlp))
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean([-2, -1]))


class ConvClassifier(nn.Module):
    """timm style: VGG's dense layers as convolutions, behind a decision on the input's size."""

    def __init__(self, inputs: int, size: int, width: int) -> None:
        super().__init__()
        self.size = size
        self.fc1 = nn.Conv2d(inputs, width, size)
        self.drop = nn.Dropout(0.1)
        self.fc2 = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] < self.size:
            x = functional.adaptive_avg_pool2d(x, self.size)
        return torch.relu(self.fc2(self.drop(torch.relu(self.fc1(x)))))


class TimmVgg(nn.Module):
    def __init__(self, classifier: nn.Module | None = None) -> None:
        super().__init__()
        self.features = Vgg().features
        self.pre_logits = classifier or ConvClassifier(16, 7, 32)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pre_logits(self.features(x)))


class AllConvolutional(nn.Module):
    """No dense layer at all: a last kernel without padding, then 1x1 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv3x3(3, 16), nn.ReLU(), conv3x3(16, 16, 2), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU())
        self.classes = nn.Conv2d(16, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.last(self.body(x))).mean((2, 3))


class Res2NetBlock(nn.Module):
    """A bottleneck whose middle splits the channels; a stage's first block pools the last part."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv1x1(inputs, 2 * width)
        self.bn1 = nn.BatchNorm2d(2 * width)
        self.conv2 = conv3x3(width, width, stride)
        self.pool = nn.AvgPool2d(3, stride, padding=1)
        self.conv3 = conv1x1(2 * width, 4 * width)
        self.downsample = nn.Sequential(conv1x1(inputs, 4 * width, stride))

    def forward(self, x: Tensor) -> Tensor:
        one, other = torch.relu(self.bn1(self.conv1(x))).split(self.conv2.in_channels, 1)
        out = self.conv3(torch.cat([torch.relu(self.conv2(one)), self.pool(other)], 1))
        return torch.relu(out + self.downsample(x))


class Res2Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv3x3(3, 8)
        self.layers = nn.Sequential(Res2NetBlock(8, 4, 1), Res2NetBlock(16, 8, 2))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


class AggregatedStage(nn.Module):
    """Deep layer aggregation: a 1x1 root joins two blocks; pooling makes the next shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.downsample = nn.MaxPool2d(2)
        self.project = conv1x1(inputs, outputs)
        self.conv1 = conv3x3(inputs, outputs, 2)
        self.conv2 = conv3x3(outputs, outputs)
        self.root = nn.Sequential(conv1x1(2 * outputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.project(self.downsample(x))
        one = torch.relu(self.conv2(torch.relu(self.conv1(x))) + shortcut)
        return self.root(torch.cat([one, shortcut], 1))


class DeepLayerAggregation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = conv3x3(3, 8)
        self.levels = nn.Sequential(AggregatedStage(8, 16), AggregatedStage(16, 32))
        self.fc = nn.Conv2d(32, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.adaptive_avg_pool2d(self.levels(self.base(x)), 1)
        return self.fc(out).flatten(1)


class EncoderBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim)
        self.self_attention = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        y, _ = self.self_attention(y, y, y, need_weights=False)
        x = x + y
        return x + self.mlp(self.ln_2(x))


class TorchvisionViT(nn.Module):
    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, dim, 4, stride=4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embedding = nn.Parameter(torch.zeros(1, 65, dim))
        self.encoder = nn.Sequential(EncoderBlock(dim), EncoderBlock(dim), nn.LayerNorm(dim))
        self.heads = nn.Sequential(nn.Linear(dim, 10))

    def forward(self, x: Tensor) -> Tensor:
        n, _, _, _ = x.shape
        x = self.conv_proj(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1) + self.pos_embedding
        return self.heads(self.encoder(x)[:, 0])


class PatchEmbed(nn.Module):
    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, 4, stride=4)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        # an assertion on the input's shape, which symbolic tracing cannot follow
        assert x.shape[-1] == self.size
        return self.proj(x).flatten(2).transpose(1, 2)


class FusedAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, dim))


class TransformerBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = FusedAttention(dim, 4)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TimmViT(nn.Module):
    def __init__(self, dim: int = 64, size: int = 32) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(dim, size)
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // 4) ** 2, dim))
        self.blocks = nn.Sequential(*(TransformerBlock(dim) for _ in range(2)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.patch_embed(x) + self.pos_embed)
        return self.head(self.norm(x).mean(1))


class Unfold(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 4:
            raise ValueError("the patch size must divide the image size")
        return functional.unfold(x, 4, stride=4).transpose(1, 2)


class LinearPatchViT(nn.Module):
    """Patches cut by an unfold and embedded by a linear layer, after the blocks were made."""

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.transformer = nn.ModuleList(TransformerBlock(dim) for _ in range(2))
        self.to_patch_embedding = nn.Sequential(
            Unfold(), nn.LayerNorm(48), nn.Linear(48, dim), nn.LayerNorm(dim)
        )
        self.mlp_head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.to_patch_embedding(x)
        for block in self.transformer:
            x = block(x)
        return self.mlp_head(x.mean(1))


class UntraceableLinearPatchViT(nn.Module):
    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.to_patch_embedding = nn.Sequential(Unfold(), nn.Linear(48, dim))
        self.transformer = nn.Sequential(TransformerBlock(dim))
        self.mlp_head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise ValueError("expected a batch of images")
        return self.mlp_head(self.transformer(self.to_patch_embedding(x)).mean(1))


class SplitAttention(nn.Module):
    """Query, key and value apart; ``attend`` is how their activations are multiplied."""

    def __init__(self, dim: int, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.1))
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.attend(self.q(x), self.k(x), self.v(x)))


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention without a softmax."""
    return torch.relu(q) @ (torch.relu(k).transpose(1, 2) @ v)


def branching_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention behind a decision that symbolic tracing cannot follow."""
    return linear_attention(q, k, v) if q.shape[1] > 1 else v


class ConvStemTransformer(nn.Module):
    """Two convolutions make the patches, a third one mixes them before the head."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], dim: int = 64) -> None:
        super().__init__()
        self.mix = nn.Conv1d(dim, dim, 1)
        self.blocks = nn.Sequential(*(SplitAttention(dim, attend) for _ in range(3)))
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, dim, 4, stride=4)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(torch.relu(self.first(x))).flatten(2).transpose(1, 2)
        x = self.mix(self.blocks(x).transpose(1, 2))
        return self.head(x.mean(2))


class WideHeadCnn(nn.Module):
    """Four equal linear layers side by side that are a plain classifier, not attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv3x3(3, 8)
        self.conv2 = conv3x3(8, 64)
        self.fc1 = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, 64)
        self.fc3 = nn.Linear(64, 64)
        self.fc4 = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv2(torch.relu(self.conv1(x)))).mean((2, 3))
        return self.fc4(torch.relu(self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))))


class TwoStreams(nn.Module):
    """A sum whose arms read two different inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(conv3x3(3, 8), nn.ReLU(), conv3x3(8, 8))
        self.mask = conv1x1(1, 8)
        self.fc = nn.Linear(8, 10)

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return self.fc((self.image(image) + self.mask(mask)).mean((2, 3)))


class TextTransformer(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, dim)
        self.blocks = nn.Sequential(TransformerBlock(dim))
        self.head = nn.Linear(dim, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens)).mean(1))


class FemnistCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * 49, 2048)
        self.fc2 = nn.Linear(2048, 62)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


class TextCnn(nn.Module):
    def __init__(self, vocabulary: int = 30_000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 128, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(128, 128, width) for width in (3, 4, 5))
        self.fc = nn.Linear(384, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        pooled = [functional.relu(conv(x)).max(dim=2).values for conv in self.convs]
        return self.fc(functional.dropout(torch.cat(pooled, 1), 0.5, self.training))


class OddBlock(nn.Module):
    """The projection is made first, is applied last, and is called what nobody expects."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv_main = nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.GroupNorm(2, outputs))
        self.shortcut1 = conv3x3(inputs, outputs)
        self.downsample = conv3x3(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out = self.downsample(torch.relu(self.shortcut1(x)))
        return torch.relu(torch.add(self.conv_main(x), out))


class OddNet(nn.Module):
    """Misleading names: ``head`` is the stem and ``transition`` a plain convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([OddBlock(8, 16), OddBlock(16, 32)])
        self.head = conv3x3(3, 8)
        self.transition = conv3x3(32, 32)
        self.conv = nn.Linear(32, 10)

    def forward(self, x: Tensor, flag: bool = False) -> Tensor:
        x = self.head(x)
        for block in self.body:
            x = block(x)
        x = functional.max_pool2d(torch.relu(self.transition(x)), 2)
        return x if flag else self.conv(x.mean((2, 3)))


class FlatNet(nn.Module):
    """One flat module: residual, dense and gate structure in ``forward`` alone, functional too."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(8, 3, 3, 3) * 0.1)
        self.b = conv3x3(8, 16)
        self.c = conv1x1(16, 16)
        self.d = conv1x1(8, 16)
        self.e = conv1x1(32, 8)
        self.f = conv3x3(8, 8)
        self.g = nn.Conv2d(8, 8, 1)
        self.h = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv2d(x, self.a, stride=1, padding=1)
        y = self.c(torch.relu(self.b(x))) + self.d(x)
        z = self.e(torch.relu(torch.cat([y, torch.relu(y)], 1)))
        z = self.f(functional.avg_pool2d(z, 2))
        gate = self.g(functional.avg_pool2d(z, z.shape[2:]))
        return self.h((z * gate.sigmoid()).mean((2, 3)))


class ShapeDependentBlock(nn.Module):
    """Decides on the shape of an activation, so its forward cannot be followed symbolically."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.one = conv1x1(inputs, width)
        self.two = conv3x3(width, width)
        self.three = conv1x1(width, outputs)
        self.match = nn.Sequential(conv1x1(inputs, outputs), nn.GroupNorm(2, outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.three(torch.relu(self.two(torch.relu(self.one(x)))))
        return torch.relu(out + (x if x.shape == out.shape else self.match(x)))


class ShapeDependentNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv3x3(3, 16)
        self.blocks = nn.Sequential(ShapeDependentBlock(16, 16, 32), ShapeDependentBlock(32, 8, 24))
        self.fc = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class AttentiveConvNet(nn.Module):
    """Mostly convolutional; its attention runs on 1x1 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv3x3(3, 16)
        self.query = conv1x1(16, 16)
        self.key = conv1x1(16, 16)
        self.value = conv1x1(16, 16)
        self.out = conv1x1(16, 16)
        self.last = conv3x3(16, 16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        q, k, v = (part.flatten(2) for part in (self.query(x), self.key(x), self.value(x)))
        weights = torch.softmax(torch.bmm(q.transpose(1, 2), k), dim=-1)
        x = x + self.out(torch.bmm(v, weights.transpose(1, 2)).view_as(x))
        return self.fc(self.last(x).mean((2, 3)))


class LooksAtItsInput(nn.Module):
    """A chain of parts behind a forward that branches on the input's shape."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 0:
            raise ValueError("expected a batch that is not empty")
        for part in self.parts:
            x = part(x)
        return x


class Residual(nn.Module):
    """The sum of two arms that leave the same tensor, after a stem and before a head."""

    def __init__(self, long: nn.Module, short: nn.Module, outputs: int = 16) -> None:
        super().__init__()
        self.stem = conv3x3(3, 8)
        self.long = long
        self.short = short
        self.head = nn.Linear(outputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        return self.head(torch.relu(self.long(x) + self.short(x)).mean((2, 3)))
