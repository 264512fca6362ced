"""The federations that all contenders train; needs torch and NumPy alone.

Every client takes part in every round and trains one epoch of plain SGD; FedAvg averages. Images
and labels are random numbers, which cost what real ones do. Where an epoch is one batch, all
contenders must have the same weights after a round but for rounding; their runs check that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.resnet import resnet20

CLASSES = 10
LEARNING_RATE = 0.05
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload:
    """Clients with equally many samples, and their model.

    threads: of contenders that train in one process; tiny steps are slower with several
    """

    title: str
    clients: int
    samples: int
    batch: int
    shape: tuple[int, int, int]
    build: Callable[[], nn.Module]
    threads: int = len(os.sched_getaffinity(0))

    @property
    def one_batch(self) -> bool:
        """True where the order of samples has no influence on the result."""
        return self.samples == self.batch

    def arrays(self) -> dict[str, Any]:
        """Images ``uint8 [N, H, W, C]`` and labels; the clients' samples stand side by side."""
        draw = np.random.default_rng(0)
        count, (channels, height, width) = self.clients * self.samples, self.shape
        x = draw.integers(0, 256, (count, height, width, channels), dtype=np.uint8)
        y = draw.integers(0, CLASSES, count)
        y[:CLASSES] = np.arange(CLASSES)
        writers = np.repeat(np.arange(self.clients), self.samples)
        return {"x_train": x, "y_train": y, "writer_train": writers, "x_test": x[:100],
                "y_test": y[:100]}  # fmt: skip

    def batches(self, channels_last: bool) -> list[list[Batch]]:
        """The batches of each client, normalised and ready to be trained on."""
        arrays = self.arrays()
        x = torch.from_numpy(arrays["x_train"]).permute(0, 3, 1, 2).to(torch.float32) / 255
        deviation, mean = torch.std_mean(x, (0, 2, 3), correction=0, keepdim=True)
        order = torch.channels_last if channels_last else torch.contiguous_format
        x = x.sub_(mean).div_(deviation).contiguous(memory_format=order)
        y = torch.from_numpy(arrays["y_train"])
        each = range(0, self.samples, self.batch)
        return [
            [(x[s + i : s + i + self.batch], y[s + i : s + i + self.batch]) for i in each]
            for s in range(0, len(y), self.samples)
        ]

    def model(self, channels_last: bool = False) -> nn.Module:
        """The model with the initial weights of every contender."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = self.build()
        return model.to(memory_format=torch.channels_last) if channels_last else model


def _linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, CLASSES))


WORKLOADS = {
    "linear": Workload(
        "1,000 clients of 10 samples, 28 x 28, linear", 1000, 10, 10, (1, 28, 28), _linear,
        threads=1,
    ),
    "resnet8": Workload(
        "10 clients of 50 samples, 16 x 16, ResNet-8", 10, 50, 50, (3, 16, 16),
        lambda: resnet20(CLASSES, 1),
    ),
    "resnet20": Workload(
        "10 clients of 500 samples, 32 x 32, ResNet-20", 10, 500, 50, (3, 32, 32),
        lambda: resnet20(CLASSES),
    ),
}  # fmt: skip


def arrays(workload: str) -> dict[str, Any]:
    """The data set of a workload, for ``--dataset benchmarks.peers.workloads:arrays``."""
    return WORKLOADS[workload].arrays()


def model(workload: str) -> nn.Module:
    """The model of a workload, for ``--model benchmarks.peers.workloads:model``."""
    return WORKLOADS[workload].model()
