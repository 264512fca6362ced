"""Seconds per federated round: this trainer against the plain loop of common simulators.

ResNet-20, CIFAR-10 (random images of its shape where the data are absent), 10 active clients of
500 samples, batch 50, one local epoch, no filter, no evaluation. The plain loop has a
``DataLoader`` for each client, eager PyTorch, one process with all cores. Rounds of both
alternate, so that whatever else the machine does strikes both alike.

    python benchmarks/bench_round.py --rounds 5 --json round.json
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import specgrad_data
import torch
import torch.nn.functional as F
from specgrad_data import Dataset
from specgrad_fl import engine, machine, prepare
from specgrad_fl.config import Config
from specgrad_fl.machine import peak_mib
from specgrad_fl.models import Inputs, build_seeded
from specgrad_fl.runs import RunDirectory
from torch import Tensor, nn
from torch.utils import data as loading

CORES = len(os.sched_getaffinity(0))


def cifar_or_noise() -> Dataset:
    """The real images where they are at hand."""
    try:
        return specgrad_data.load("cifar10")
    except specgrad_data.DataError as error:
        print(f"random images instead of CIFAR-10: {error}")
        draw = torch.Generator().manual_seed(0)
        shape = (50_000, 3, 32, 32)
        return Dataset(
            name="noise",
            train_x=torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8),
            train_y=torch.randint(0, 10, (50_000,), generator=draw),
            test_x=torch.zeros(100, 3, 32, 32, dtype=torch.uint8),
            test_y=torch.zeros(100, dtype=torch.int64),
            num_classes=10,
            mean=(0.5, 0.5, 0.5),
            std=(0.29, 0.29, 0.29),
            augment_pad=4,
            flip=True,
            writers=None,
            fingerprint="noise",
        )


class Augmented(loading.Dataset):
    """One client's images, flipped and cropped one by one."""

    def __init__(self, images: Tensor, labels: Tensor, mean: Tensor, std: Tensor) -> None:
        self.images = (images.float() / 255 - mean[:, None, None]) / std[:, None, None]
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        if torch.rand(()) < 0.5:
            top, left = torch.randint(0, 9, (2,)).tolist()
            image = F.pad(image, (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
        return image, self.labels[index]


def plain_round(model: nn.Module, dataset: Dataset, clients: list[Tensor], config: Config) -> None:
    """FedAvg as simulators write it."""
    mean, std = torch.tensor(dataset.mean), torch.tensor(dataset.std)
    sums = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}
    for held in clients:
        local = copy.deepcopy(model)
        samples = Augmented(dataset.train_x[held], dataset.train_y[held], mean, std)
        batches = loading.DataLoader(samples, batch_size=config.batch_size, shuffle=True)
        optimizer = torch.optim.SGD(
            local.parameters(), lr=config.lr, weight_decay=config.weight_decay
        )
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(local(x), y).backward()
            nn.utils.clip_grad_norm_(local.parameters(), config.clip)
            optimizer.step()
        for name, value in local.state_dict().items():
            sums[name] += value / len(clients)
    model.load_state_dict(sums)


def measure(rounds: int, workers: int) -> dict[str, object]:
    """Times of alternating rounds, after one of each to warm up."""
    dataset = cifar_or_noise()
    config = Config(
        model="resnet20", clients=100, active=10, partition="iid", rounds=10**6, workers=workers,
        eval_every=10**6, eval_tail=0,
    )  # fmt: skip
    partition = prepare.divide(config, dataset)
    held = partition.clients[: config.active]
    model = build_seeded("resnet20", Inputs(10, 3, 32), {}, 0)
    times: dict[str, list[float]] = {"plain": [], "specgrad_fl": []}
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder))
        ours = engine.Engine(config, dataset, partition, run).start()
        try:
            for number in range(rounds + 1):
                torch.set_num_threads(CORES)
                begun = time.perf_counter()
                plain_round(model, dataset, held, config)
                middle = time.perf_counter()
                torch.set_num_threads(config.threads)
                ours.round(number)
                times["plain"].append(middle - begun)
                times["specgrad_fl"].append(time.perf_counter() - middle)
            memory = {"parent": peak_mib(), "workers": ours.executor.memory()}
            processes = ours.executor.processes
        finally:
            ours.close()
    times = {name: values[1:] for name, values in times.items()}
    medians = {name: statistics.median(values) for name, values in times.items()}
    paired = [a / b for a, b in zip(times["plain"], times["specgrad_fl"], strict=True)]
    return {
        "data": dataset.name,
        "cores": CORES,
        "processes": processes,
        "seconds": times,
        "median_seconds": medians,
        "speedup": medians["plain"] / medians["specgrad_fl"],
        "speedup_paired": statistics.median(paired),
        "peak_mib": memory,
        "environment": machine.report(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0, help="0 takes one for each core")
    parser.add_argument("--json", type=Path, help="file for all figures")
    arguments = parser.parse_args()
    result = measure(arguments.rounds, arguments.workers)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    for name, seconds in result["median_seconds"].items():
        print(f"{name:12} {seconds:6.2f} s/round")
    print(f"speedup      {result['speedup']:6.2f} (median of pairs {result['speedup_paired']:.2f})")
    memory = result["peak_mib"]
    print(
        f"peak memory  {memory['parent']:.0f} MiB, workers {[round(m) for m in memory['workers']]}"
    )


if __name__ == "__main__":
    main()
