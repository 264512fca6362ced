"""The recipes of docs/integrations.md, to be run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from process_group import process_group
from torch import Tensor, nn

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()


def recipes() -> dict[str, list[str]]:
    """Title of a section and its Python blocks; what all of them need is under the page's title."""
    found = {}
    for section in re.split(r"^##? ", PAGE, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        found[title] = re.findall(r"^```python\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
    return found


def begin() -> dict[str, Any]:
    """The names that every recipe starts from."""
    names: dict[str, Any] = {"__name__": "recipe"}
    (common,) = recipes()["With other training libraries"]
    exec(compile(common, "integrations.md, first lines", "exec"), names)
    names["start"] = names["make_model"]()
    return names


def follow(title: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a section's blocks and return what they leave behind."""
    names = begin() if names is None else names
    for block in recipes()[title]:
        exec(compile(block, f"integrations.md, {title}", "exec"), names)
    return names


def changes(names: dict[str, Any]) -> list[Tensor]:
    """Changes of the weights of the two convolutions; wrappers keep their order and shapes."""
    kernels = [p.detach() for p in names["model"].parameters() if p.dim() == 4]
    kernels = [k.full_tensor() if hasattr(k, "full_tensor") else k for k in kernels]
    return [
        after - before.detach()
        for after, before in zip(kernels, (names["start"][i].weight for i in (0, 2)), strict=True)
    ]


def low_share(change: Tensor, ratio: float = 0.05) -> float:
    """The largest low bin of a change, relative to its largest bin."""
    spectrum = torch.fft.rfft(change.double().flatten()).abs()
    return float(spectrum[: max(1, int(ratio * len(spectrum)))].max() / spectrum.max())


def assert_filtered(names: dict[str, Any]) -> None:
    for change in changes(names):
        assert float(change.abs().max()) > 1e-5
        assert low_share(change) < 1e-4


def samples_of(rank: int) -> torch.utils.data.TensorDataset:
    drawn = torch.Generator().manual_seed(rank)
    return torch.utils.data.TensorDataset(
        torch.randn(32, 3, 8, 8, generator=drawn), torch.randint(10, (32,), generator=drawn)
    )


def follow_in_parallel(rank: int, title: str, folder: str) -> None:
    """A recipe in one of two processes with samples of its own; leaves the trained weights."""
    torch.set_num_threads(1)
    with process_group(rank, 2, folder):
        names = begin()
        names["loader"] = torch.utils.data.DataLoader(samples_of(rank), batch_size=8)
        follow(title, names)
        kernels = changes(names)
        if rank == 0:
            torch.save(kernels, f"{folder}/kernels.pt")


def train_alone() -> list[Tensor]:
    """Expected result of two processes: one process with the mean of both losses."""
    names = begin()
    model = names["model"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names["FilterPlan"].for_model(model).attach(optimizer)
    loaders = [torch.utils.data.DataLoader(samples_of(rank), batch_size=8) for rank in (0, 1)]
    for batches in zip(*loaders, strict=True):
        optimizer.zero_grad()
        losses = [nn.functional.cross_entropy(model(x), y) for x, y in batches]
        (sum(losses) / 2).backward()
        optimizer.step()
    return changes(names)
