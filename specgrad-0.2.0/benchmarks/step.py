"""A training step of ResNet-20 with the filter in it."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from specgrad_fl.models import resnet20
from torch import Tensor

from benchmarks.contenders import CONTENDERS, OURS
from benchmarks.timing import Call, Summary
from specgrad_kernels import FilterPlan, FilterSpec

BATCH = 50
LOOP = "fft_loop"


class TrainingStep:
    """Forward, backward, filter and SGD on one batch of random images."""

    def __init__(self, method: str, contender: str, ratio: float) -> None:
        torch.manual_seed(0)
        self.model = resnet20(num_classes=10)
        self.images = torch.randn(BATCH, 3, 32, 32)
        self.labels = torch.randint(10, (BATCH,))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.plan = FilterPlan.for_model(self.model, FilterSpec(method=method, ratio=ratio))
        self.filter: Call = self.plan.filter_grads_
        if contender != OURS:
            self.filter = lambda: CONTENDERS[contender].bind(self.gradients(), method, ratio)()

    def gradients(self) -> list[Tensor]:
        """Gradients of the filtered layers."""
        return [p.grad for p in self.plan.parameters if p.grad is not None]

    def run(self) -> tuple[float, float]:
        """Seconds of the whole step and of the filter inside it."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.images), self.labels).backward()
        before = time.perf_counter()
        self.filter()
        after = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - start, after - before


def time_steps(
    variants: dict[str, TrainingStep], seconds: float, fewest: int
) -> dict[str, tuple[Summary, Summary]]:
    """Step and filter times of every variant, one step each in turn."""
    steps: dict[str, list[float]] = {name: [] for name in variants}
    filters: dict[str, list[float]] = {name: [] for name in variants}
    for variant in variants.values():
        variant.run()
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(next(iter(steps.values()))) < fewest:
        for name, variant in variants.items():
            step, share = variant.run()
            steps[name].append(step)
            filters[name].append(share)
    return {name: (Summary.of(steps[name]), Summary.of(filters[name])) for name in variants}
