"""Vision transformers with a class token and 64 patches at 32 x 32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
    """Patches by a convolution, learned positions, ``depth`` blocks, head on the class token."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        image_size: int,
        patch: int,
        dim: int,
        depth: int,
        heads: int,
        mlp: int,
        dropout: float,
    ) -> None:
        super().__init__()
        if image_size % patch:
            raise ValueError(f"patch {patch} does not divide the image size {image_size}")
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (image_size // patch) ** 2 + 1, dim) * 0.02)
        self.patch_embed = nn.Conv2d(in_channels, dim, patch, stride=patch)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(dim, heads, 64, mlp, dropout) for _ in range(depth)])
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


def vit(
    num_classes: int,
    in_channels: int = 3,
    image_size: int = 32,
    patch: int = 4,
    dropout: float = 0.1,
) -> ViT:
    """Width 512, 6 blocks of 8 heads; take ``patch=8`` for 64 x 64 images."""
    return ViT(num_classes, in_channels, image_size, patch, 512, 6, 8, 512, dropout)


def vit_small(
    num_classes: int,
    in_channels: int = 3,
    image_size: int = 32,
    patch: int = 4,
    dropout: float = 0.1,
) -> ViT:
    """Width 192, 6 blocks of 3 heads: for a CPU."""
    return ViT(num_classes, in_channels, image_size, patch, 192, 6, 3, 384, dropout)
