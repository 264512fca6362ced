"""From a run directory to rounds on Flower: a federation on this machine, or one that exists."""

from __future__ import annotations

import importlib.util
import ipaddress
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from specgrad_data import Dataset

from specgrad_fl import samples, training
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError, installing
from specgrad_fl.flower import processes, shards
from specgrad_fl.flower.rundir import FlowerFiles
from specgrad_fl.partition import Partition
from specgrad_fl.runs import RunDirectory

if TYPE_CHECKING:
    from specgrad_fl.flower.control import Control
    from specgrad_fl.flower.processes import Process
    from specgrad_fl.progress import Watcher

FLOWER = "1.41"
LOOK_SECONDS, STATUS_SECONDS, OUTCOME_SECONDS = 0.2, 5.0, 2.0


def check_installed() -> None:
    """Refuse to go on without the Flower that this engine was written for."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError(
            f"engine 'flower' needs Flower, which is not installed; {installing('fl,flower')}"
        )
    found = metadata.version("flwr")
    if not found.startswith(f"{FLOWER}."):
        raise ConfigError(
            f"engine 'flower' is written for Flower {FLOWER}, and {found} is installed; "
            f"pip install 'flwr=={FLOWER}.*'"
        )


def check(config: Config) -> None:
    """Refuse settings that cannot work, before anything is written."""
    check_installed()
    if config.min_clients > config.active:
        raise ConfigError(
            f"min_clients is {config.min_clients} and active {config.active}; no round could "
            "reach it"
        )
    if config.tls_ca and not Path(config.tls_ca).is_file():
        raise ConfigError(f"tls_ca is {config.tls_ca}, which is no file; give the CA's certificate")
    if config.superlink:
        host, port = split_address(config.superlink)
        if config.insecure and not is_loopback(host):
            raise ConfigError(
                f"insecure is for the loopback interface, and superlink is {config.superlink}; "
                "leave --insecure out and give --tls-ca"
            )
        if not processes.answers(host, port):
            raise RunError(
                f"nothing answers at {config.superlink}; check --superlink, and that "
                "`specgrad-fl flower superlink` or `flower-superlink` runs there"
            )


def split_address(address: str) -> tuple[str, int]:
    """Host and port.

    >>> split_address("127.0.0.1:9092")
    ('127.0.0.1', 9092)
    >>> split_address("server")
    Traceback (most recent call last):
    specgrad_fl.errors.ConfigError: superlink is 'server'; write HOST:PORT
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"superlink is {address!r}; write HOST:PORT")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether an address never leaves this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def write_shards(
    config: Config, dataset: Dataset, partition: Partition, folders: list[Path]
) -> None:
    """Give each node a folder with its clients' samples: client k to node k mod N."""
    _, arrays = samples.stored(dataset, config.augment, config.channels_last)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    for client, held in enumerate(partition.clients):
        x, y = arrays["train_x"][held], arrays["train_y"][held]
        shards.write(folders[client % len(folders)], client, x.numpy(), y.numpy())


def move_states(nodes: list[Path], others: list[Path]) -> None:
    """Where a resumed run has another number of nodes, let clients' states follow their samples."""
    for source in {*nodes, *others}:
        for path in source.glob("state/*/*.safetensors"):
            client = int(path.name.partition("-")[0])
            home = nodes[client % len(nodes)]
            if home != source:
                target = home / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)


def play(run: RunDirectory, dataset: Dataset, watch: Watcher) -> RunDirectory:
    """Play the rounds that are left of a run, on the federation that its configuration names."""
    config = run.config()
    files = FlowerFiles(run)
    files.folder.mkdir(parents=True, exist_ok=True)
    files.outcome_path.unlink(missing_ok=True)
    federation = joined(config) if config.superlink else started(run, dataset)
    with federation as (control, running):
        number = control.submit(run.path)
        try:
            _follow(run, files, control, number, running, watch)
        except BaseException:
            _stop(control, number)
            raise
    return run


def _stop(control: Control, number: int) -> None:
    """End the server's process, too; a SuperLink that is gone has ended it already."""
    try:
        if not control.status(number).finished:
            control.stop(number)
    except RunError as error:
        print(f"specgrad-fl: the run could not be ended: {error}", file=sys.stderr)


@contextmanager
def joined(config: Config) -> Iterator[tuple[Control, list[Process]]]:
    """A SuperLink that others operate."""
    from specgrad_fl.flower.control import Control

    control = Control(config.superlink, config.tls_ca, config.insecure)
    try:
        yield control, []
    finally:
        control.close()


@contextmanager
def started(run: RunDirectory, dataset: Dataset) -> Iterator[tuple[Control, list[Process]]]:
    """One SuperLink and several SuperNodes on this machine, which end with this block."""
    from specgrad_fl.flower.security import make_keys
    from specgrad_fl.flower.superlink import SuperLink

    config, files = run.config(), FlowerFiles(run)
    names = [f"node-{number}" for number in range(min(config.nodes, config.clients))]
    folders = [files.folder / name for name in names]
    partition = training.partition_of(run, config, dataset)
    write_shards(config, dataset, partition, [folder / "data" for folder in folders])
    move_states(folders, list(files.folder.glob("node-*")))
    keys = None
    if not config.insecure:
        shutil.rmtree(files.keys, ignore_errors=True)
        keys = make_keys(files.keys, [processes.LOOPBACK], names, sign_more=False)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, files.keys, ignore_errors=True)
        link = SuperLink(
            processes.LOOPBACK, processes.free_port(), keys, files.home, files.log("superlink")
        )
        stack.callback(link.process.stop)
        if keys is not None:
            keys.key.unlink()  # the SuperLink has read it, and what it starts need not
        running = [link.process]
        for name, folder in zip(names, folders, strict=True):
            command = [sys.executable, "-m", "specgrad_fl.cli", "flower", "node"]
            command += ["--superlink", link.address, "--port", str(processes.free_port())]
            command += ["--data", str(folder / "data"), "--state", str(folder / "state")]
            # whoever starts this federation operates its nodes, and named these
            for own in (config.model, config.method):
                command += ["--allow", own] if ":" in own else []
            if keys is None:
                command += ["--insecure"]
            else:
                command += ["--tls-ca", str(keys.authority), "--key", str(keys.node(name))]
            env = processes.environment(folder / "home")
            node = processes.Process(name, command, env, files.log(name))
            stack.callback(node.stop)
            running.append(node)
        control = link.control()
        stack.callback(control.close)
        yield control, running


def _follow(
    run: RunDirectory,
    files: FlowerFiles,
    control: Control,
    number: int,
    running: list[Process],
    watch: Watcher,
) -> None:
    """Report rounds as they are recorded, until the server ends."""
    news = News(run, watch)
    seen = False
    asked = time.monotonic()
    while True:
        ended, error = files.ended()
        news.tell()
        if ended:
            if error is not None:
                raise RunError(error)
            return
        _check_running(running, news.told > 0)
        lives = files.server_lives()
        if seen and not lives:
            _confirm_death(run, files, "it was killed")
        seen = seen or lives
        if time.monotonic() - asked > STATUS_SECONDS:
            asked = time.monotonic()
            status = control.status(number)
            if status.finished:
                _confirm_death(run, files, status.details)
        time.sleep(LOOK_SECONDS)


class News:
    """Tells a watcher of rounds that a server adds to the records."""

    def __init__(self, run: RunDirectory, watch: Watcher) -> None:
        self.told = 0
        self._run = run
        self._watch = watch
        self._config = run.config()
        self._last = run.load_rounds()
        self._size = -1

    def tell(self) -> None:
        """Tell of what is new; the file is read only when it has changed."""
        path = self._run.metrics_path
        size = path.stat().st_size if path.is_file() else 0
        if size == self._size:
            return
        self._size = size
        for record in self._run.records():
            if record["round"] > self._last:
                self._last = record["round"]
                self.told += 1
                self._watch(record, self._config)


def _check_running(running: list[Process], settled: bool) -> None:
    """Without its SuperLink a federation is lost; nodes may die once rounds are played."""
    link, nodes = running[:1], running[1:]
    for process in link if settled and any(n.running() for n in nodes) else running:
        process.check()


def _confirm_death(run: RunDirectory, files: FlowerFiles, why: str) -> None:
    """The server has ended; unless it says how in a moment, it did not mean to."""
    time.sleep(OUTCOME_SECONDS)
    if not files.ended()[0]:
        raise RunError(
            f"the server ended before the run did: {why or 'it was killed'}; continue with "
            f"`specgrad-fl resume {run.path}`"
        )
