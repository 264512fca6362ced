"""CKA between local models, stage by stage, on test images drawn by the run's seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from specgrad_fl.samples import Samples
from specgrad_fl.seeding import generator
from torch import Tensor, nn

from specgrad_kernels.flow import NORMS
from specgrad_study.diagnosis.cka import debiased_cka

IMAGES = 2000
BATCH = 200
PENULTIMATE = "penultimate"

Features = dict[str, Tensor]


def pooled(output: Tensor) -> Tensor:
    """Channel means: over space for ``[n, c, ...]`` from convolutions, over tokens otherwise.

    >>> pooled(torch.ones(2, 3, 4, 4)).shape, pooled(torch.ones(2, 65, 8)).shape
    (torch.Size([2, 3]), torch.Size([2, 8]))
    """
    if output.dim() == 3:
        return output.mean(1)
    return output.flatten(2).mean(2) if output.dim() > 3 else output


def stage_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The parts of a model that are compared, by name.

    A model may list its stages as ``stages``, as the bundled ResNets do. Of others, the direct
    children with weights are taken, and the parts of a container instead of the container. Norms
    are left out, and the head, whose input is the penultimate layer.
    """
    listed = getattr(model, "stages", None)
    if listed is not None:
        return {name: model.get_submodule(name) for name in listed}
    stages: dict[str, nn.Module] = {}
    head = last_linear(model)
    for name, child in model.named_children():
        weighted = next(child.parameters(), None) is not None
        if not weighted or child is head or isinstance(child, NORMS):
            continue
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            stages |= {f"{name}.{part}": module for part, module in child.named_children()}
        else:
            stages[name] = child
    return stages


def last_linear(model: nn.Module) -> nn.Linear | None:
    """The linear layer registered last: the head of every model that classifies by one."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None


@contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Collects pooled features of every forward pass inside the block."""
    stages, head = stage_modules(model), last_linear(model)
    kept: dict[str, list[Tensor]] = {name: [] for name in stages}
    with ExitStack() as hooks:
        for name, module in stages.items():
            hook = module.register_forward_hook(
                lambda _, __, output, rows=kept[name]: rows.append(pooled(output).float().cpu())
            )
            hooks.enter_context(hook)
        if head is not None:
            rows = kept[PENULTIMATE] = []
            hook = head.register_forward_pre_hook(
                lambda _, inputs: rows.append(inputs[0].flatten(1).float().cpu())
            )
            hooks.enter_context(hook)
        yield kept


def draw_images(arrays: Features, images: int, seed: int) -> Features:
    """Arrays whose test set is a random draw: files may be sorted by class."""
    order = torch.randperm(len(arrays["test_y"]), generator=generator(seed, "CKA images"))
    return arrays | {name: arrays[name][order[:images]] for name in ("test_x", "test_y")}


@torch.inference_mode()
def features(model: nn.Module, samples: Samples) -> Features:
    """Features of all test images, by stage, ``[n, p]``; never augmented."""
    count = len(samples.test_y)
    model.eval()
    with recording(model) as kept:
        for start in range(0, count, BATCH):
            model(samples.test_batch(start, min(start + BATCH, count))[0])
    return {name: torch.cat(rows) for name, rows in kept.items()}


def similarity(models: list[Features], batch: int = BATCH) -> dict[str, list[list[float | None]]]:
    """Debiased CKA of all pairs of models by stage; ``None`` where features do not vary."""
    matrices = {}
    for stage in models[0]:
        matrix = debiased_cka([each[stage] for each in models], batch).tolist()
        matrices[stage] = [[None if math.isnan(v) else v for v in row] for row in matrix]
    return matrices
