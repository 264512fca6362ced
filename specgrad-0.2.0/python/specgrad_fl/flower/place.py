"""Data of a node: the samples of its clients, and their state between rounds.

A silo has a folder with one file for each client: ``client-000003.safetensors`` holds ``train_x``
(``uint8 [N, H, W, C]`` images, or ``int64 [N, L]`` token ids) and ``train_y`` (``int64 [N]``). A
node of a trial is given a number instead, divides the data set itself and keeps its own part.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialised
from specgrad_data import Dataset

from specgrad_fl import prepare, storage
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError
from specgrad_fl.methods.base import Vectors
from specgrad_fl.samples import stored
from specgrad_fl.storage import client_path

NodeConfig = Mapping[str, Any]
Array = NDArray[Any]
_NAME = re.compile(r"client-(\d{6,})\.safetensors")
# the settings that decide who has which samples
_DIVIDING = (
    "dataset", "data_root", "data_options", "partition", "clients", "alpha", "partition_mode",
    "shards_per_client", "samples_per_client", "validation", "seed",
)  # fmt: skip
_SETTINGS = "--node-config 'data=\"FOLDER\"' or 'partition-id=K num-partitions=N'"


def path_of(folder: Path, client: int) -> Path:
    """The file of a client."""
    return folder / f"client-{client:06d}.safetensors"


def write(folder: Path, client: int, x: Array, y: Array) -> None:
    """Store a client's samples: ``x`` as images ``uint8 [N, H, W, C]`` or tokens ``int64``."""
    contents = {"train_x": np.ascontiguousarray(x), "train_y": np.ascontiguousarray(y, np.int64)}
    storage.make_folder(folder, storage.PRIVATE)
    storage.write_bytes(path_of(folder, client), serialised(contents))


def write_shards(config: Config, dataset: Dataset, clients: Any, folders: list[Path]) -> None:
    """Write the samples of every client: of client k to folder k mod N."""
    _, arrays = stored(dataset, config.augment, config.channels_last)
    for client, held in enumerate(clients):
        x, y = arrays["train_x"][held], arrays["train_y"][held]
        write(folders[client % len(folders)], client, x.numpy(), y.numpy())


def fingerprint(x: Array, y: Array) -> str:
    """Tells whether two parties mean the same samples."""
    digest = hashlib.sha256()
    for array in (x, y.astype(np.int64)):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def allowed_names(node: NodeConfig) -> list[str]:
    """Names of models, methods and data sets that this node's operator lets a server ask for."""
    told = f"{node.get('allow', '')},{os.environ.get('SPECGRAD_ALLOW', '')}"
    return [name.strip() for name in told.split(",") if name.strip()]


@dataclass(frozen=True)
class NodeData:
    """A node's clients. ``folder`` has their files; without one, ``config`` says how to divide.

    number, count: of the clients, this is the node for those that are ``number`` modulo ``count``
    """

    folder: Path | None
    config: Config | None = field(repr=False)
    number: int = 0
    count: int = 1

    @staticmethod
    def of(node: NodeConfig, asked: Config) -> NodeData:
        """That of a node, for a run with the settings ``asked``."""
        number, count = node.get("partition-id"), node.get("num-partitions")
        folder = node.get("data") if isinstance(node.get("data"), str) else None
        if folder and number is None and count is None:
            number, count = 0, 1
        elif number is None and count is None:
            raise RunError(
                "it has neither a folder of clients' samples nor a partition-id; start the "
                f"SuperNode with {_SETTINGS}"
            )
        if type(number) is not int or type(count) is not int or not 0 <= number < count:
            raise RunError(
                f"partition-id is {number!r} and num-partitions {count!r}; start the SuperNode "
                "with --node-config 'partition-id=K num-partitions=N', K from 0 to N - 1"
            )
        if folder:
            return NodeData(Path(folder), None, number, count)
        if ":" in asked.dataset and asked.dataset not in allowed_names(node):
            raise ConfigError(
                f"dataset {asked.dataset!r} is not allowed on this machine; its operator can "
                "allow it by name when the node is started"
            )
        # where the data sets are is this machine's affair, not the server's
        return NodeData(
            None, asked.replace(data_root=str(node.get("data-root", ""))), number, count
        )

    @property
    def key(self) -> str:
        """The same for places with the same samples."""
        if self.config is None:
            return str(self.folder)
        return json.dumps({name: getattr(self.config, name) for name in _DIVIDING})

    def clients(self) -> list[int]:
        """The clients of this node."""
        if self.folder is None:
            found = list(range(len(_divided(self.key)[1])))
        elif not self.folder.is_dir():
            raise RunError(f"there is no data folder {self.folder}; start it with {_SETTINGS}")
        else:
            names = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
            found = sorted(int(name[1]) for name in names if name)
        here = [client for client in found if client % self.count == self.number]
        if not here:
            raise RunError(
                f"{self.folder or 'the data set'} has no client for partition {self.number} of "
                f"{self.count}; use at most as many nodes as clients, or write files with "
                "`specgrad-fl flower shards`"
            )
        return here

    def samples(self, client: int) -> dict[str, Array]:
        """``train_x`` and ``train_y`` of a client."""
        if self.folder is None:
            arrays, clients = _divided(self.key)
            return {name: array[clients[client]] for name, array in arrays.items()}
        path = path_of(self.folder, client)
        try:
            with safe_open(path, framework="np") as file:
                return {name: file.get_tensor(name) for name in ("train_x", "train_y")}
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"the data of client {client} cannot be read from {path}: {error}; write the file "
                "again"
            ) from error

    def states(self, node: NodeConfig) -> Path:
        """Where clients keep what they need between rounds."""
        if isinstance(node.get("state"), str):
            return Path(node["state"])
        home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
        return home / "specgrad" if self.folder is None else self.folder / "state"


@functools.lru_cache(maxsize=1)
def _divided(settings: str) -> tuple[dict[str, Array], list[Array]]:
    """All samples, and the indices of each client's; once for all nodes in this process."""
    config = Config(**json.loads(settings))
    dataset = prepare.load_data(config)
    _, arrays = stored(dataset, config.augment, config.channels_last)
    held = prepare.divide(config, dataset).clients
    return {n: arrays[n].numpy() for n in ("train_x", "train_y")}, [one.numpy() for one in held]


class ClientStateStore:
    """Client states between rounds, on the node's disk, by run, client and round.

    The server says which round's state a client goes on from, and which one it would need after
    going back to its last checkpoint. Both are kept until the server names newer ones, so that a
    server that is killed and resumed finds every client as it left it.
    """

    def __init__(self, folder: Path, run: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise RunError(f"run is {run!r}; expected its name in hexadecimal digits")
        self.folder = folder / run

    def load(self, client: int, round_number: int, names: tuple[str, ...], size: int) -> Vectors:
        """The state after a round; zeros after round 0, when the client was never taken over."""
        if not names or not round_number:
            return {name: torch.zeros(size) for name in names}
        path = client_path(self.folder, client, round_number)
        try:
            vectors, _ = storage.load_tensors(path)
        except RunError as error:
            raise RunError(
                f"client {client} has no state of round {round_number}: {error}"
            ) from error
        if set(vectors) != set(names) or any(v.shape != (size,) for v in vectors.values()):
            raise RunError(f"{path} does not fit this model and method; start a new run")
        return vectors

    def save(self, client: int, round_number: int, state: Vectors, keep: set[int]) -> None:
        """Store the state after a round, and remove those of rounds not in ``keep``."""
        if not state:
            return
        storage.make_folder(self.folder, storage.PRIVATE)
        storage.save_tensors(client_path(self.folder, client, round_number), state, {})
        kept = {client_path(self.folder, client, number) for number in (*keep, round_number)}
        for path in self.folder.glob(f"{client:06d}-*.safetensors"):
            if path not in kept:
                path.unlink()
