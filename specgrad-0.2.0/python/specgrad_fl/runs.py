"""The run directory: everything a run leaves behind, safe against being killed at any moment.

config.toml            the resolved configuration
environment.json       machine and versions
inputs.json            what the model takes: shape, classes, mean and deviation of the pixels
partition.npz, .png    which client holds which samples
metrics.jsonl          one line for each round; metrics.csv holds the same
events.out.tfevents.*  for TensorBoard
last.safetensors       the state after the last stored round, with digests of the other files
previous.safetensors   the state that was stored before that one
best.safetensors       the weights of the best evaluation
clients/               what clients keep between rounds
flower/                of a run on Flower: logs, and on one machine the nodes' folders
summary.json           results, once the run is finished
curves.png             accuracy and loss by round
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specgrad_data import Dataset
from torch import Tensor

from specgrad_fl import machine, records, storage, toml
from specgrad_fl.config import EXECUTION_KEYS, Config, read_toml
from specgrad_fl.errors import ConfigError, RunError
from specgrad_fl.partition import Partition
from specgrad_fl.records import CHECK, Record, Records, line_check
from specgrad_fl.storage import PRIVATE, TEMPORARY, client_path
from specgrad_fl.summary import summarise

# of whoever plays rounds; and of the command that started a federation to play them
LOCK, FEDERATION_LOCK = LOCKS = ("lock", "federation.lock")
_DIGEST_LINE = "# digest of the settings that decide the result: "
_UNTIL_THE_FIRST_ROUND = (
    *("config.toml", "environment.json", "inputs.json", "partition.npz", "partition.png"),
    *("metrics.jsonl", "metrics.csv", "events.out.tfevents.*.specgrad", "last.safetensors"),
    *("previous.safetensors", "best.safetensors", "clients/*.safetensors", *LOCKS),
)


@dataclass
class RunState:
    """State of a run after a stored round: the facts and tensors of ``last.safetensors``.

    rounds: rounds done; best: best accuracy so far and its round
    client_rounds: round of the newest stored state of each client; client_digests: of those files
    metrics, partition, inputs, best_digest: digests of what those files held
    """

    rounds: int = 0
    best_accuracy: float = -1.0
    best_round: int = 0
    fingerprint: str = ""
    client_rounds: dict[int, int] = field(default_factory=dict)
    client_digests: dict[int, str] = field(default_factory=dict)
    metrics: str = ""
    partition: str = ""
    inputs: str = ""
    best_digest: str = ""
    tensors: dict[str, Tensor] = field(default_factory=dict)


class RunDirectory:
    """Reads and writes one run."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.toml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.last_path = self.path / "last.safetensors"
        self.previous_path = self.path / "previous.safetensors"
        self.best_path = self.path / "best.safetensors"
        self.partition_path = self.path / "partition.npz"
        self.summary_path = self.path / "summary.json"
        self.clients_path = self.path / "clients"
        self.inputs_path = self.path / "inputs.json"
        self._held: dict[str, int] = {}  # open files of the locks
        self._checked: bool | None = None  # whether it had finished then

    @property
    def exists(self) -> bool:
        """Return true if a run was begun here."""
        return self.config_path.is_file()

    @property
    def finished(self) -> bool:
        """Return true if the run has finished."""
        return self.summary_path.is_file()

    def check_new(self) -> None:
        """Refuse a folder that holds anything, a run or somebody's files."""
        if self.exists:
            raise RunError(
                f"{self.path} already holds a run; continue it with `specgrad-fl resume "
                f"{self.path}` or choose another --out"
            )
        with self._usable():
            found = sorted(self.path.iterdir()) if self.path.is_dir() else []
        for path in found:
            # what a run leaves that was killed before it began
            if path.name.endswith(TEMPORARY) or (path.name in LOCKS and not path.stat().st_size):
                continue
            raise RunError(
                f"{self.path} is not empty: it holds {path.name}; choose a new folder as --out, "
                "a run never shares one with other files"
            )

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = f"cannot write to {self.path}: {error.strerror}; choose another --out"
            raise RunError(why) from error

    @contextmanager
    def locked(self, name: str = LOCK) -> Iterator[None]:
        """Keep other processes away; the lock ends with the process, however it ends.

        May be nested. ``name`` is that of another lock where the rounds are played by another
        process than the one that began the run.
        """
        if name in self._held:
            yield
            return
        with self._usable():
            self.path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            path = self.path / name
            handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        with os.fdopen(handle) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # whoever had it until now may have discarded the run, and the file with it
                if not _names(path, handle):
                    raise BlockingIOError
            except BlockingIOError as error:
                raise RunError(
                    f"another process is working on {self.path}; wait for it or choose another "
                    "--out"
                ) from error
            self._held[name] = handle
            try:
                yield
            finally:
                del self._held[name]

    def _check_there(self) -> None:
        """Refuse to go on in a folder that was removed, also if another took its name."""
        for name, handle in self._held.items():
            if not _names(self.path / name, handle):
                raise RunError(
                    f"{self.path} was removed or emptied while the run was at work; begin again "
                    "in a new folder"
                )

    def create(self, config: Config) -> None:
        """Begin a run: from here on the folder is one, and nobody else's to read."""
        with self._usable():
            self.path.chmod(PRIVATE)
        self.reconfigure(config)

    def discard(self) -> None:
        """Remove a run that came to nothing, and no file besides."""
        for name in _UNTIL_THE_FIRST_ROUND:
            for path in self.path.glob(name):
                path.unlink()
        for folder in (self.clients_path, self.path):
            with suppress(OSError):  # it never was, or somebody put a file there meanwhile
                folder.rmdir()

    def reconfigure(self, config: Config) -> None:
        """Write the configuration, and what tells whether its decisive settings were changed."""
        text = f"{_DIGEST_LINE}{config.digest}\n{toml.written(config.as_dict())}"
        storage.write_text(self.config_path, text)

    def config(self) -> Config:
        """The configuration the run was begun with."""
        if not self.exists:
            raise RunError(f"{self.path} is not a run directory: it has no config.toml")
        settings = read_toml(self.config_path)
        try:
            config = Config(**settings)
        except ConfigError as error:
            raise RunError(f"in {self.config_path}: {error}") from error
        first = self.config_path.read_text(encoding="utf-8").partition("\n")[0]
        if first.startswith("#") and first != _DIGEST_LINE + config.digest:
            raise storage.spoiled(
                f"{self.config_path} has changed since the run began: its settings do not have "
                "the digest in its first line"
            )
        return config

    def complete(self, partition: Partition, inputs: Record) -> None:
        """Write what every run has besides its rounds, where it is not there yet."""
        writers: dict[str, Callable[[Path], None]] = {
            "partition.npz": partition.save,
            "inputs.json": lambda path: storage.write_json(path, inputs),
            "environment.json": lambda path: storage.write_json(path, machine.report()),
        }
        for name, write in writers.items():
            if not (self.path / name).is_file():
                write(self.path / name)

    def draw(self, partition: Partition, dataset: Dataset) -> None:
        """Draw the partition, where that is not done yet."""
        path = self.path / "partition.png"
        if not path.is_file():
            partition.heatmap(path, dataset.train_y, dataset.num_classes)

    def save_state(self, state: RunState, config: Config) -> None:
        """Store the state after a round; the one before stays, as ``previous.safetensors``."""
        self._check_there()
        if self.last_path.is_file():
            storage.link(self.last_path, self.previous_path)
        facts = {k: v for k, v in vars(state).items() if k != "tensors"}
        storage.save_tensors(self.last_path, state.tensors, {**facts, "config": config.digest})

    def load_state(self, config: Config, fingerprint: str) -> RunState:
        """The stored state, or a new one where none was stored yet."""
        if not self.last_path.is_file():
            if self.records():
                raise storage.spoiled(f"{self.last_path} is missing")
            return RunState(fingerprint=fingerprint, inputs=self._inputs_digest())
        tensors, facts = storage.load_tensors(self.last_path)
        # a finished run that is extended was stored with fewer rounds
        before = config.replace(rounds=facts["rounds"]) if facts.get("rounds") else config
        if facts.pop("config", None) not in (config.digest, before.digest):
            raise RunError(
                f"{self.last_path} belongs to another configuration than {self.config_path}; "
                "restore the file that was changed or start a new run"
            )
        if facts["fingerprint"] != fingerprint:
            raise RunError(
                f"the data have changed since this run began: fingerprint {fingerprint}, not "
                f"{facts['fingerprint']}; restore them or start a new run"
            )
        for name in ("client_rounds", "client_digests"):
            facts[name] = {int(k): v for k, v in facts.get(name, {}).items()}
        self.check_inputs(facts)
        return RunState(**facts, tensors=tensors)

    def _inputs_digest(self) -> str:
        path = self.inputs_path
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""

    def check_inputs(self, facts: dict[str, Any]) -> None:
        """Refuse a changed ``inputs.json``: the model would see other numbers than in training."""
        if facts.get("inputs") and facts["inputs"] != self._inputs_digest():
            raise storage.changed(self.inputs_path)

    def facts(self) -> dict[str, Any]:
        """Read the facts of the stored state; none where nothing was stored yet."""
        return storage.load_tensors(self.last_path)[1] if self.last_path.is_file() else {}

    def previous(self) -> dict[str, Any]:
        """Read the facts of the checkpoint before the last; none where it is not there or damaged.

        A run does without it, and it is written anew with the next checkpoint.
        """
        try:
            facts = storage.load_facts(self.previous_path)
            kept = {int(k): int(v) for k, v in facts["client_rounds"].items()}
            return {"rounds": int(facts["rounds"]), "client_rounds": kept}
        except (RunError, KeyError, ValueError, TypeError, AttributeError):
            return {}

    def check_own(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of another run: it was stored with these settings and these data.

        A run that was made longer had fewer rounds then.
        """
        config, last = self.config(), self.facts()
        lengths = range(config.rounds, facts["rounds"] - 1, -1)
        same = all(facts[name] == last[name] for name in ("fingerprint", "partition", "inputs"))
        if not same or facts["config"] not in (config.replace(rounds=n).digest for n in lengths):
            raise storage.spoiled(f"{path} is a checkpoint of another run")

    def previous_rounds(self) -> dict[int, int]:
        """Rounds of the client states that the checkpoint before the last needs."""
        return self.previous().get("client_rounds", {})

    def load_rounds(self) -> int:
        """Number of rounds that the stored state has seen."""
        return self.facts().get("rounds", 0)

    def check(self) -> None:
        """Refuse a run whose configuration, rounds or results are not those it wrote.

        Every reader goes through this, once for each object, and once more when the run has
        finished. A run whose checkpoint was removed has nothing to compare with.
        """
        finished = self.finished
        if self._checked is finished or not (self.exists and self.last_path.is_file()):
            return
        config = self.config()
        state = self.load_state(config, self.facts().get("fingerprint", ""))
        found = Records(self.metrics_path)
        found.check(state.rounds, state.metrics)
        if finished:
            if len(records.read(self.metrics_path)) != state.rounds:
                raise storage.changed(self.metrics_path)
            self._check_summary(summarise(list(found), config))
        self._checked = finished

    def _check_summary(self, expected: Record) -> None:
        """Refuse results that do not follow from the rounds; others need what tells a changed one.

        Results of earlier versions have no such thing, and may lack some.
        """
        stored = self._summary()
        odd = {name for name in stored if name != CHECK and stored[name] != expected.get(name)}
        if odd - (set(stored) - set(expected) if CHECK in stored else set()):
            raise self.damaged_summary()

    def verify(self) -> None:
        """Check a finished run with all its tensors, as before it is taken up again."""
        self.check()
        state = self.load_state(self.config(), self.facts().get("fingerprint", ""))
        self.partition()
        storage.load_tensors(self.best_path, state.best_digest)
        self._check_states(state.client_rounds, state.client_digests)
        if self.previous_path.is_file():
            _, facts = storage.load_tensors(self.previous_path)
            self._check_states(facts["client_rounds"], facts["client_digests"])

    def partition(self) -> Partition:
        """Load the partition, if it is the one that the stored rounds were played with."""
        partition, expected = Partition.load(self.partition_path), self.facts().get("partition")
        if expected and partition.digest != expected:
            raise storage.changed(self.partition_path)
        return partition

    def _check_states(self, rounds: Mapping[Any, int], digests: Mapping[Any, str]) -> None:
        """Refuse changed files of what clients keep, as a checkpoint lists them."""
        for client, number in rounds.items():
            if client in digests:
                path = client_path(self.clients_path, int(client), number)
                storage.load_tensors(path, digests[client])

    def records(self) -> list[Record]:
        """Read the rounds that were written so far."""
        self.check()
        return records.read(self.metrics_path)

    def rewind(self, state: RunState) -> Records:
        """The records as they were when the state was stored, and no half-written file."""
        for litter in self.path.glob(f"*{TEMPORARY}"):
            litter.unlink()
        found = Records(self.metrics_path)
        found.rewind(state.rounds, state.metrics)
        return found

    def summary(self) -> Record:
        """Read the results of a finished run."""
        self.check()
        return {name: value for name, value in self._summary().items() if name != CHECK}

    def save_summary(self, results: Record) -> None:
        """Write the results of a run that has finished, with what tells a changed one."""
        self._check_there()
        storage.write_json(self.summary_path, {**results, CHECK: line_check(results)})

    def _summary(self) -> Record:
        try:
            found = json.loads(self.summary_path.read_text(encoding="utf-8"))
        except OSError as error:
            raise RunError(f"{self.path} is not a finished run: {error.strerror}") from error
        except ValueError:
            found = None
        if not (isinstance(found, dict) and "final_accuracy" in found):
            raise self.damaged_summary()
        results = {name: value for name, value in found.items() if name != CHECK}
        if found.get(CHECK) not in (None, line_check(results)):
            raise self.damaged_summary()
        return found

    def damaged_summary(self) -> RunError:
        """The refusal for results that cannot be right."""
        return RunError(
            f"{self.summary_path} is damaged; delete it and resume the run to write it again"
        )


def _names(path: Path, handle: int) -> bool:
    """Return true if the path still names the file that is open."""
    return path.exists() and os.path.samestat(path.stat(), os.fstat(handle))


def run_name(config: Config) -> str:
    """A directory name that tells runs apart."""
    named = (config.dataset, config.model, config.method, config.filter)
    name = "-".join((*named, f"s{config.seed}", config.digest[:8]))
    return name.replace(":", ".").replace("/", "_")


def extended(run: RunDirectory, stored: Config, rounds: int) -> Config:
    """The configuration of a finished run with more rounds, stored as an unfinished one."""
    if rounds < stored.rounds:
        raise RunError(
            f"this run has {stored.rounds} rounds and --rounds {rounds} was asked for; a run can "
            "be made longer, not shorter"
        )
    if rounds == stored.rounds:
        return stored
    if stored.lr_schedule == "cosine":
        raise RunError(
            "the cosine of this run's learning rate ends with its last round, so that more rounds "
            "would be another run; start one with --rounds"
        )
    if not run.finished:
        raise RunError(
            f"this run has not finished its {stored.rounds} rounds; resume it without --rounds, "
            "and then with it"
        )
    longer = stored.replace(rounds=rounds)
    run.summary_path.unlink()
    run.reconfigure(longer)
    return longer


def check_same(stored: Config, asked: dict[str, Any]) -> dict[str, Any]:
    """The changes that do not touch the result; a :class:`RunError` for any other."""
    for name, value in asked.items():
        if name not in EXECUTION_KEYS and getattr(stored, name) != value:
            raise RunError(
                f"{name} is {getattr(stored, name)!r} in this run and {value!r} was asked for; "
                "start a new run for another configuration"
            )
    return {name: value for name, value in asked.items() if name in EXECUTION_KEYS}
