"""The run directory: everything a run leaves behind, safe against being killed at any moment.

config.toml            the resolved configuration
environment.json       machine and versions
partition.npz, .png    which client holds which samples
metrics.jsonl          one line for each round; metrics.csv holds the same
events.out.tfevents.*  for TensorBoard
last.safetensors       the state after the last stored round
best.safetensors       the weights of the best evaluation
clients/               what clients keep between rounds
flower/                of a run on Flower: logs, and on one machine the nodes' folders
summary.json           results, once the run is finished
curves.png             accuracy and loss by round
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from specgrad_fl import atomic, checkpoint, environment, events
from specgrad_fl.config import EXECUTION_KEYS, Config, read_toml, to_toml
from specgrad_fl.errors import RunError
from specgrad_fl.partition import Partition

Record = dict[str, Any]


@dataclass
class State:
    """What a run needs to go on: the facts and tensors of ``last.safetensors``.

    rounds: rounds done; best: best accuracy so far and its round
    client_rounds: round of the newest stored state of each client
    """

    rounds: int = 0
    best_accuracy: float = -1.0
    best_round: int = 0
    fingerprint: str = ""
    client_rounds: dict[int, int] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)


class RunDirectory:
    """Reads and writes one run."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.toml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.last_path = self.path / "last.safetensors"
        self.best_path = self.path / "best.safetensors"
        self.partition_path = self.path / "partition.npz"
        self.summary_path = self.path / "summary.json"
        self.clients_path = self.path / "clients"

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.config_path.is_file()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary_path.is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process may continue a run; the lock ends with the process, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / "lock", "w")  # noqa: SIM115 - held for the block
        except OSError as error:
            raise RunError(
                f"cannot write to {self.path}: {error.strerror}; choose another --out"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunError(
                    f"another process is working on {self.path}; wait for it or choose another "
                    "--out"
                ) from error
            yield

    def create(self, config: Config) -> None:
        """Begin a run."""
        atomic.write_text(self.path / "environment.json", _json(environment.report()))
        atomic.write_text(self.config_path, to_toml(config.as_dict()))

    def reconfigure(self, config: Config) -> None:
        """Change settings that have no effect on the result."""
        atomic.write_text(self.config_path, to_toml(config.as_dict()))

    def config(self) -> Config:
        """The configuration the run was begun with."""
        if not self.exists:
            raise RunError(f"{self.path} is not a run directory: it has no config.toml")
        return Config(**read_toml(self.config_path))

    def save_partition(self, partition: Partition, labels: Tensor, num_classes: int) -> None:
        """Store the partition and its heat map."""
        try:
            partition.save(self.partition_path)
            partition.heatmap(self.path / "partition.png", labels, num_classes)
        except OSError as error:
            raise atomic.cannot_write(self.partition_path, error) from error

    def save_state(self, state: State, config: Config) -> None:
        """Store the state after a round."""
        facts = {
            "rounds": state.rounds,
            "best_accuracy": state.best_accuracy,
            "best_round": state.best_round,
            "client_rounds": {str(k): v for k, v in state.client_rounds.items()},
            "config": config.digest,
            "fingerprint": state.fingerprint,
        }
        checkpoint.save(self.last_path, state.tensors, facts)

    def load_state(self, config: Config, fingerprint: str) -> State:
        """The stored state, or a new one where none was stored yet."""
        if not self.last_path.is_file():
            return State(fingerprint=fingerprint)
        tensors, facts = checkpoint.load(self.last_path)
        if facts.get("config") != config.digest:
            raise RunError(
                f"{self.last_path} belongs to another configuration than {self.config_path}; "
                "restore the file that was changed or start a new run"
            )
        if facts["fingerprint"] != fingerprint:
            raise RunError(
                f"the data have changed since this run began: fingerprint {fingerprint}, not "
                f"{facts['fingerprint']}; restore them or start a new run"
            )
        return State(
            rounds=facts["rounds"],
            best_accuracy=facts["best_accuracy"],
            best_round=facts["best_round"],
            fingerprint=fingerprint,
            client_rounds={int(k): v for k, v in facts["client_rounds"].items()},
            tensors=tensors,
        )

    def load_rounds(self) -> int:
        """How many rounds the stored state has seen."""
        if not self.last_path.is_file():
            return 0
        return checkpoint.load(self.last_path)[1]["rounds"]

    def records(self) -> list[Record]:
        """The rounds in ``metrics.jsonl``; a torn last line, left by a crash, is not one."""
        if not self.metrics_path.is_file():
            return []
        records = []
        lines = self.metrics_path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                record = json.loads(line)
                int(record["round"])
            except (ValueError, TypeError, KeyError) as error:
                if number >= len(lines):
                    break
                raise RunError(
                    f"line {number} of {self.metrics_path} is damaged; restore the file"
                ) from error
            records.append(record)
        return records

    def rewind(self, rounds: int) -> list[Record]:
        """Forget what was written after the stored round, and what a crash left half written."""
        kept = [record for record in self.records() if record["round"] <= rounds]
        if len(kept) != rounds:
            raise RunError(
                f"{self.metrics_path} has {len(kept)} of the {rounds} rounds that the checkpoint "
                "has seen; restore the file or start a new run"
            )
        for litter in self.path.glob(f"*{atomic.TEMPORARY}"):
            if litter.is_file():
                litter.unlink()
        atomic.write_text(self.metrics_path, "".join(_line(record) for record in kept))
        self._rewrite_events(kept)
        return kept

    def append(self, record: Record) -> None:
        """Add a round to ``metrics.jsonl`` and to the TensorBoard events."""
        try:
            with open(self.metrics_path, "a", encoding="utf-8") as file:
                file.write(_line(record))
                file.flush()
                os.fsync(file.fileno())
            events.append_scalars(
                self._events_path(), record["time"], record["round"], scalars(record)
            )
        except OSError as error:
            raise atomic.cannot_write(self.metrics_path, error) from error

    def _events_path(self) -> Path:
        found = sorted(self.path.glob("events.out.tfevents.*.specgrad"))
        return found[0] if found else self.path / events.file_name(time.time())

    def _rewrite_events(self, records: list[Record]) -> None:
        path = self._events_path()
        path.unlink(missing_ok=True)
        for record in records:
            events.append_scalars(path, record["time"], record["round"], scalars(record))

    def write_csv(self, records: list[Record]) -> None:
        """All rounds as a table; nested numbers get dotted names."""
        rows = [flattened(record) for record in records]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        atomic.write_text(self.path / "metrics.csv", text.getvalue())

    def write_summary(self, summary: Record) -> None:
        """Mark the run as finished."""
        atomic.write_text(self.summary_path, _json(summary))

    def summary(self) -> Record:
        """The results of a finished run."""
        try:
            found = json.loads(self.summary_path.read_text(encoding="utf-8"))
        except OSError as error:
            raise RunError(f"{self.path} is not a finished run: {error.strerror}") from error
        except ValueError:
            found = None
        if not (isinstance(found, dict) and "final_accuracy" in found):
            raise RunError(
                f"{self.summary_path} is damaged; delete it and resume the run to write it again"
            )
        return found


def run_name(config: Config) -> str:
    """A directory name that tells runs apart."""
    parts = (
        config.dataset,
        config.model,
        config.method,
        config.filter,
        f"s{config.seed}",
        config.digest[:8],
    )
    return "-".join(part.replace(":", ".").replace("/", "_") for part in parts)


def flattened(record: Record, prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted names, lists left out.

    >>> flattened({"round": 1, "seconds": {"filter": 0.5}, "clients": [1, 2]})
    {'round': 1, 'seconds.filter': 0.5}
    """
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat.update(flattened(value, f"{prefix}{key}."))
        elif not isinstance(value, list):
            flat[f"{prefix}{key}"] = value
    return flat


def scalars(record: Record) -> dict[str, float]:
    """The numbers of a record that are worth a curve."""
    flat = flattened({k: v for k, v in record.items() if k not in ("round", "time")})
    return {name.replace(".", "/"): float(value) for name, value in flat.items()}


def check_same(stored: Config, asked: dict[str, Any]) -> dict[str, Any]:
    """The changes that do not touch the result; a :class:`RunError` for any other."""
    for name, value in asked.items():
        if name not in EXECUTION_KEYS and getattr(stored, name) != value:
            raise RunError(
                f"{name} is {getattr(stored, name)!r} in this run and {value!r} was asked for; "
                "start a new run for another configuration"
            )
    return {name: value for name, value in asked.items() if name in EXECUTION_KEYS}


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _line(record: Record) -> str:
    return json.dumps(record) + "\n"
