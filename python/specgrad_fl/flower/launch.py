"""From a run directory to rounds on Flower: a federation on this machine, or one that exists."""

from __future__ import annotations

from pathlib import Path

from specgrad_fl import batches, engine
from specgrad_fl.data import Dataset
from specgrad_fl.flower import shards
from specgrad_fl.flower.rundir import FlowerFiles
from specgrad_fl.runs import RunDirectory


def write_shards(run: RunDirectory, dataset: Dataset, nodes: int) -> list[Path]:
    """Give each node of this machine a folder with its clients' samples: client k to node k mod N.

    What an earlier number of nodes left is removed; the states that clients keep are not.
    """
    files = FlowerFiles(run)
    config = run.config()
    partition = engine.partition_of(run, config, dataset)
    _, arrays = batches.stored(dataset, config.augment, config.channels_last)
    folders = [files.node(number) / "data" for number in range(nodes)]
    for client, held in enumerate(partition.clients):
        x, y = arrays["train_x"][held], arrays["train_y"][held]
        shards.write(folders[client % nodes], client, x.numpy(), y.numpy())
    return folders
