"""What a node has: the samples of its clients, and what they keep between rounds.

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
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialised

from specgrad_fl import storage
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError

NodeConfig = Mapping[str, Any]
Array = NDArray[Any]
_NAME = re.compile(r"client-(\d{6,})\.safetensors")
_SETTINGS = "--node-config 'data=\"FOLDER\"' or 'partition-id=K num-partitions=N'"


def path_of(folder: Path, client: int) -> Path:
    """The file of a client.

    >>> path_of(Path("data"), 3).name
    'client-000003.safetensors'
    """
    return folder / f"client-{client:06d}.safetensors"


def write(folder: Path, client: int, x: Array, y: Array) -> None:
    """Store a client's samples: ``x`` as images ``uint8 [N, H, W, C]`` or tokens ``int64``."""
    if len(x) != len(y) or not len(y):
        raise RunError(
            f"client {client} has {len(x)} samples and {len(y)} labels; give one label to each "
            "of at least one sample"
        )
    contents = {"train_x": np.ascontiguousarray(x), "train_y": np.ascontiguousarray(y, np.int64)}
    storage.make_folder(folder, storage.PRIVATE)
    storage.write_bytes(path_of(folder, client), serialised(contents))


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


def _part(node: NodeConfig) -> tuple[int, int]:
    """Which of how many nodes this is; ``(0, 1)`` where clients are not counted over nodes."""
    number, count = node.get("partition-id"), node.get("num-partitions")
    if number is None and count is None:
        return 0, 1
    if type(number) is not int or type(count) is not int or not 0 <= number < count:
        raise RunError(
            f"partition-id is {number!r} and num-partitions {count!r}; start the SuperNode with "
            "--node-config 'partition-id=K num-partitions=N', K from 0 to N - 1"
        )
    return number, count


@dataclass(frozen=True)
class Place:
    """A node's clients. ``folder`` has their files; without one, ``config`` says how to divide.

    number, count: of the clients, this is the node for those that are ``number`` modulo ``count``
    """

    folder: Path | None
    config: Config | None = field(repr=False)
    number: int = 0
    count: int = 1

    @staticmethod
    def of(node: NodeConfig, asked: Mapping[str, Any]) -> Place:
        """That of a node, for a run with the settings ``asked``."""
        number, count = _part(node)
        if isinstance(node.get("data"), str):
            return Place(Path(node["data"]), None, number, count)
        if "partition-id" not in node:
            raise RunError(
                "it has neither a folder of clients' samples nor a partition-id; start the "
                f"SuperNode with {_SETTINGS}"
            )
        name = str(asked.get("dataset", ""))
        if ":" in name and name not in allowed_names(node):
            raise ConfigError(
                f"dataset {name!r} is not allowed on this machine; its operator can allow it by "
                "name when the node is started"
            )
        # where the data sets are is this machine's affair, not the server's
        config = Config().replace(**{**asked, "data_root": str(node.get("data-root", ""))})
        return Place(None, config, number, count)

    @property
    def key(self) -> str:
        """The same for places with the same samples."""
        return str(self.folder) if self.config is None else _dividing(self.config)

    def clients(self) -> list[int]:
        """The clients of this node."""
        here = [c for c in self.everybody() if c % self.count == self.number]
        if not here:
            raise RunError(self._emptiness())
        return here

    def everybody(self) -> list[int]:
        """The clients whose samples can be read here, of this node and of others."""
        if self.folder is None:
            return list(range(len(_divided(self.key)[1])))
        if not self.folder.is_dir():
            raise RunError(f"there is no data folder {self.folder}; start it with {_SETTINGS}")
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def _emptiness(self) -> str:
        where = "the data set" if self.folder is None else self.folder
        return (
            f"{where} has no client for partition {self.number} of {self.count}; use at most as "
            "many nodes as clients, or write files with `specgrad-fl flower shards`"
        )

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


_DIVIDING = (
    "dataset", "data_root", "data_options", "partition", "clients", "alpha", "partition_mode",
    "shards_per_client", "samples_per_client", "validation", "seed",
)  # fmt: skip


def _dividing(config: Config) -> str:
    """The settings that decide who has which samples."""
    return json.dumps({name: getattr(config, name) for name in _DIVIDING}, sort_keys=True)


@functools.lru_cache(maxsize=1)
def _divided(settings: str) -> tuple[dict[str, Array], list[Array]]:
    """All samples, and the indices of each client's; once for all nodes in this process."""
    from specgrad_fl import prepare, samples  # with torch, which a folder of files does without

    config = Config(**json.loads(settings))
    dataset = prepare.load_data(config)
    _, arrays = samples.stored(dataset, config.augment, config.channels_last)
    held = prepare.divide(config, dataset).clients
    return {n: arrays[n].numpy() for n in ("train_x", "train_y")}, [one.numpy() for one in held]
