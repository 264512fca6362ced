"""BlazeFL: ``FedAvgBaseServerHandler`` with one of its three client trainers."""

from __future__ import annotations

import functools
import os
from enum import StrEnum
from typing import Any

from blazefl.contrib.fedavg import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import IPCMode, ModelSelector, PartitionedDataset
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.peers.turns import Turns
from benchmarks.peers.workloads import LEARNING_RATE, WORKLOADS, Batch

ROUNDS = 10**6


@functools.cache
def batches(workload: str, channels_last: bool) -> list[list[Batch]]:
    """All data, once for each process; forked processes have those of their parent."""
    return WORKLOADS[workload].batches(channels_last)


class Model(StrEnum):
    ONLY = "only"


class Selector(ModelSelector):
    """Builds the model of the workload."""

    def __init__(self, workload: str) -> None:
        self._workload = workload

    def select_model(self, model_name: Model) -> nn.Module:
        return WORKLOADS[self._workload].model()


class Ready(Dataset):
    """The batches of one client."""

    def __init__(self, found: list[Batch]) -> None:
        self._batches = found

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Batch:
        return self._batches[index]


class Data(PartitionedDataset):
    """Loaders of batches that are ready, the cheapest ones there are."""

    def __init__(self, workload: str, channels_last: bool) -> None:
        self._which = workload, channels_last

    def get_dataset(self, type_: Any, cid: int | None) -> Dataset:
        assert cid is not None
        return Ready(batches(*self._which)[cid])

    def set_dataset(self, type_: Any, cid: int | None, dataset: Dataset) -> None:
        """Keep nothing: the data do not change."""

    def get_dataloader(
        self, type_: Any, cid: int | None, batch_size: int | None = None, generator: Any = None
    ) -> DataLoader:
        return DataLoader(self.get_dataset(type_, cid), batch_size=None)


def trainer_of(turns: Turns, data: Data, kind: str) -> Any:
    """``base`` trains in this process, the others in as many threads or processes as cores."""
    workload, cores = turns.workload, os.cpu_count() or 1
    common = {
        "model_selector": Selector(turns.name),
        "model_name": Model.ONLY,
        "dataset": data,
        "device": "cpu",
        "num_clients": workload.clients,
        "epochs": 1,
        "batch_size": workload.batch,
        "lr": LEARNING_RATE,
        "seed": 0,
    }
    if kind == "base":
        return FedAvgBaseClientTrainer(**common)
    if kind == "threads":
        return FedAvgThreadPoolClientTrainer(**common, num_parallels=cores)
    return FedAvgProcessPoolClientTrainer(
        **common,
        num_parallels=cores,
        share_dir=turns.folder / "share",
        state_dir=turns.folder / "state",
        ipc_mode=IPCMode.SHARED_MEMORY,
    )


def main() -> None:
    turns = Turns()
    workload = turns.workload
    data = Data(turns.name, turns.channels_last)
    batches(turns.name, turns.channels_last)
    trainer = trainer_of(turns, data, os.environ["PEER_VARIANT"])
    server = FedAvgBaseServerHandler(
        Selector(turns.name), Model.ONLY, data, ROUNDS, workload.clients, 1.0, "cpu",
        workload.batch, 0,
    )  # fmt: skip
    turns.start()
    while not server.if_stop():
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
        turns.next(dict(server.model.named_parameters()))


if __name__ == "__main__":
    main()
