"""Shares of gradient energy in the channel means and in the removed band, by what feeds a layer.

``python -m specgrad_study.diagnosis.shares`` prints them for a ResNet, a vision transformer and a
small language model, with ReLU and with GELU: where inputs are centred, as behind a LayerNorm,
there is no common push that a filter could remove.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import re
import statistics
from collections.abc import Callable

import specgrad_data
import torch
import torch.nn.functional as F
from specgrad_fl import models
from torch import Tensor, nn

from specgrad_kernels import filter_grads_
from specgrad_study.paper.plain import replaced

STEPS, BATCH, CONTEXT = 60, 64, 48
Batch = Callable[[], tuple[Tensor, Tensor]]


def shares(model: nn.Module, ratio: float = 0.05) -> dict[str, tuple[float, float]]:
    """Share of channel means and share of the removed band, for each weight with a gradient.

    >>> layer = nn.Linear(400, 8)
    >>> layer.weight.grad = torch.ones(8, 400)
    >>> [round(share, 3) for share in shares(layer)["weight"]]
    [1.0, 1.0]
    """
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is None or gradient.dim() < 2:
            continue
        rows = gradient.flatten(1).double()
        whole = rows.square().sum()
        means = rows.mean(1).square().sum() * rows.shape[1]
        left = gradient.detach().clone()
        filter_grads_([left], method="fft", ratio=ratio)
        band = 1 - left.double().square().sum() / whole
        found[name] = (float(means / whole), float(band))
    return found


class Language(nn.Module):
    """Two causal transformer blocks over bytes: LayerNorm before attention and before the MLP."""

    def __init__(self, activation: str, dim: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        self.place = nn.Parameter(torch.zeros(CONTEXT, dim))
        block = nn.TransformerEncoderLayer(
            dim, 4, 4 * dim, 0.0, activation, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.blocks(self.embed(tokens) + self.place, mask, is_causal=True)
        return self.head(hidden).transpose(1, 2)


def _images(draw: torch.Generator) -> Batch:
    data = specgrad_data.load("digits")

    def batch() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(data.train_y), (BATCH,), generator=draw)
        return data.train_x[chosen].float() / 255, data.train_y[chosen]

    return batch


def _text(draw: torch.Generator) -> Batch:
    text = torch.tensor(list(inspect.getsource(inspect).encode()))

    def batch() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=draw)
        taken = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        return taken[:, :-1], taken[:, 1:]

    return batch


def trained(model: nn.Module, batch: Batch, lr: float = 0.1) -> dict[str, tuple[float, float]]:
    """Mean shares over the second half of a few steps of SGD."""
    kept = []
    for step in range(STEPS):
        x, y = batch()
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if step >= STEPS // 2:
            kept.append(shares(model))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(lr * parameter.grad)
    return {
        name: (_mean([each[name] for each in kept], 0), _mean([each[name] for each in kept], 1))
        for name in kept[0]
    }


# what stands before a weight, by its name
BEHIND = {
    "pixels": r"patch_embed|^conv1",
    "LayerNorm": r"qkv|in_proj|mlp\.0|linear1",
    "attention": r"attention\.out|out_proj",
    "activation": r"mlp\.3|linear2|^layer",
}


def behind(name: str) -> str | None:
    """The kind of input that a weight meets; ``None`` for embeddings and heads.

    >>> behind("blocks.0.mlp.3.weight"), behind("conv1.weight"), behind("positions")
    ('activation', 'pixels', None)
    """
    return next((kind for kind, found in BEHIND.items() if re.search(found, name)), None)


def by_input(found: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Mean shares of the layers that stand behind the same kind of input."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for name, each in found.items():
        if (kind := behind(name)) is not None:
            groups.setdefault(kind, []).append(each)
    return {kind: (_mean(each, 0), _mean(each, 1)) for kind, each in groups.items()}


def _mean(pairs: list[tuple[float, float]], place: int) -> float:
    return statistics.fmean(pair[place] for pair in pairs)


def main() -> None:
    """Print a table for every model, and a row for each kind of input."""
    parser = argparse.ArgumentParser(
        prog="python -m specgrad_study.diagnosis.shares",
        description="How much of the gradient a filter would remove, by what a layer stands behind:"
        " a minute on one core. Percent of gradient energy, the least and the most over seeds.",
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to SEEDS - 1 [3]")
    seeds = range(parser.parse_args().seeds)
    inputs = models.Inputs(10, 1, 8)
    vit = functools.partial(models.build, "vit_small", inputs, {"dim": 64, "mlp": 256})
    contenders: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Batch]]] = {
        "ResNet-8, ReLU": (lambda: models.build("resnet8", inputs), _images),
        "ViT, GELU": (vit, _images),
        "ViT, ReLU": (lambda: replaced(vit(), nn.GELU, nn.ReLU), _images),
        "language model, GELU": (lambda: Language("gelu"), _text),
        "language model, ReLU": (lambda: Language("relu"), _text),
    }
    print("| model | layers behind | channel means, % | lowest 5 % of the spectrum, % |")
    print("|---|---|---|---|")
    for label, (build, data) in contenders.items():
        rows = []
        for seed in seeds:
            torch.manual_seed(seed)
            rows.append(by_input(trained(build(), data(torch.Generator().manual_seed(seed)))))
        for kind in rows[0]:
            spans = [sorted(100 * row[kind][place] for row in rows) for place in (0, 1)]
            cells = " | ".join(f"{span[0]:.1f} to {span[-1]:.1f}" for span in spans)
            print(f"| {label} | {kind} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
