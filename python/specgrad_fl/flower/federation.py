"""From a run directory to rounds on Flower: stock processes on this machine, or a SuperLink.

The folder ``flower`` of a run directory:

app           what is submitted, see ``app.py``
identity      the name under which nodes keep this run's client states
outcome.json  how the run ended: ``{"error": null}``, or the sentence to show
alive         locked by the server as long as it lives
data, state, home, logs   of the processes on this machine

``train --engine flower`` starts this module as a process of its own, the conductor. It starts
Flower's processes in a network that nobody else can reach, and ends them with itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import ipaddress
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgrad_fl import storage
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError, installing

if TYPE_CHECKING:
    from specgrad_data import Dataset

    from specgrad_fl.progress import Watcher
    from specgrad_fl.runs import RunDirectory

# releases on which the app was run
OLDEST, NEWEST = (1, 41), (1, 41)
NAME = "specgrad"
LOOPBACK = "127.0.0.1"
LOOK_SECONDS, STATUS_SECONDS, OUTCOME_SECONDS = 0.2, 5.0, 2.0
START_SECONDS, STOP_SECONDS = 60.0, 10.0


class FlowerFiles:
    """Names of files, and the two by which server and command know of each other."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "flower"
        self.app = self.folder / "app"
        self.home = self.folder / "home"
        self._outcome = self.folder / "outcome.json"
        self._alive = self.folder / "alive"

    def log(self, name: str) -> Path:
        """What a process says."""
        return self.folder / "logs" / f"{name}.txt"

    def identity(self) -> str:
        """The run's own name, drawn when it is first asked for."""
        path = self.folder / "identity"
        if not path.is_file():
            storage.make_folder(self.folder)
            storage.write_text(path, uuid.uuid4().hex)
        return path.read_text(encoding="utf-8")

    @contextlib.contextmanager
    def outcome(self) -> Iterator[None]:
        """Write how the block ends; a mistake that a user can set right as its sentence."""
        storage.make_folder(self.folder)
        with open(self._alive, "wb") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)
            error: str | None = "the server was interrupted"
            try:
                yield
                error = None
            except RunError as mistake:
                error = str(mistake)
                raise
            except Exception:
                log = self.log("server")
                storage.make_folder(log.parent)
                log.write_text(traceback.format_exc(), encoding="utf-8")
                error = f"the server failed; {log} has the reason"
                raise
            finally:
                self.end(error)

    def end(self, error: str | None) -> None:
        """Note how the run ended."""
        storage.write_text(self._outcome, json.dumps({"error": error}))

    def begin(self) -> None:
        """Forget how an earlier attempt ended."""
        storage.make_folder(self.folder)
        self._outcome.unlink(missing_ok=True)

    def ended(self) -> tuple[bool, str | None]:
        """Whether the run has ended, and the sentence if it failed."""
        if not self._outcome.is_file():
            return False, None
        return True, json.loads(self._outcome.read_text(encoding="utf-8"))["error"]

    def server_lives(self) -> bool:
        """Whether a server is at work; its death, however it comes, unlocks the file."""
        try:
            with open(self._alive, "rb") as alive:
                fcntl.flock(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False


def check_installed() -> None:
    """Refuse to go on without a Flower that is known to work."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError(
            f"engine 'flower' needs Flower, which is not installed; {installing('fl,flower')}"
        )
    found = metadata.version("flwr")
    if not OLDEST <= tuple(map(int, found.split(".")[:2])) <= NEWEST:
        low, high = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
        raise ConfigError(
            f"this works with Flower {low} to {high}, and {found} is installed; "
            f"pip install 'flwr>={low},<{NEWEST[0]}.{NEWEST[1] + 1}'"
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
        if not answers(host, port):
            raise RunError(
                f"nothing answers at {config.superlink}; check --superlink, and that "
                "`flower-superlink` runs there"
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


def answers(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def write_shards(config: Config, dataset: Dataset, clients: Any, folders: list[Path]) -> None:
    """Write each client's samples: client k to folder k mod N."""
    from specgrad_fl import samples
    from specgrad_fl.flower import place

    _, arrays = samples.stored(dataset, config.augment, config.channels_last)
    for client, held in enumerate(clients):
        x, y = arrays["train_x"][held], arrays["train_y"][held]
        place.write(folders[client % len(folders)], client, x.numpy(), y.numpy())


def play(run: RunDirectory, dataset: Dataset, watch: Watcher) -> RunDirectory:
    """Play the rounds that are left of a run, on the federation that its configuration names."""
    from specgrad_fl import training
    from specgrad_fl.flower import app

    config, files = run.config(), FlowerFiles(run.path)
    files.begin()
    for folder in (files.app, files.folder / "data"):
        shutil.rmtree(folder, ignore_errors=True)
    app.write(files.app, config, str(run.path.absolute()))
    if not config.superlink:
        clients = training.partition_of(run, config, dataset).clients
        write_shards(config, dataset, clients, [files.folder / "data"])
    log = files.log("conductor")
    storage.make_folder(log.parent)
    with open(log, "ab") as output:
        conductor = subprocess.Popen(
            [sys.executable, "-m", __name__, str(run.path.absolute()), json.dumps(_task(config))],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(files.home),
            start_new_session=True,
        )
    try:
        _follow(run, files, conductor, watch)
    except RunError as error:
        if not run.load_rounds() and str(files.folder) not in str(error):
            _leave(conductor)
            shutil.rmtree(files.folder, ignore_errors=True)
        raise
    finally:
        _leave(conductor)
    return run


def _task(config: Config) -> dict[str, Any]:
    """What the conductor must know; it does without torch."""
    # whoever starts this federation operates its nodes, and named these
    own = [name for name in (config.model, config.method) if ":" in name]
    return {
        "superlink": config.superlink,
        "tls_ca": str(Path(config.tls_ca).absolute()) if config.tls_ca else "",
        "insecure": config.insecure,
        "nodes": min(config.nodes, config.clients),
        "allow": ",".join(own),
    }


def _leave(conductor: subprocess.Popen[bytes]) -> None:
    """Let go of the conductor, which ends what it started; and make sure."""
    if conductor.stdin is not None:
        conductor.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        conductor.wait(2 * STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(conductor.pid, signal.SIGKILL)
    conductor.wait()


def _follow(
    run: RunDirectory, files: FlowerFiles, conductor: subprocess.Popen[bytes], watch: Watcher
) -> None:
    """Report rounds as they are recorded, until the run ends."""
    config, last, size = run.config(), run.load_rounds(), -1
    while True:
        gone = conductor.poll() is not None
        ended, error = files.ended()
        now = run.metrics_path.stat().st_size if run.metrics_path.is_file() else 0
        if now != size:  # the file is read only when it has changed
            size = now
            for record in run.records():
                if record["round"] > last:
                    last = record["round"]
                    watch(record, config)
        if ended and error is not None:
            raise RunError(error)
        if ended:
            return
        if gone:
            raise RunError(f"Flower could not be started; {files.log('conductor')} has the reason")
        time.sleep(LOOK_SECONDS)


def environment(home: Path) -> dict[str, str]:
    """Flower quiet and offline, looking for work often, with this Python's commands first."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {
        **os.environ,
        "PATH": programs,
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "PYTHONUNBUFFERED": "1",
    }


def connect(home: Path, address: str, authority: str, insecure: bool) -> None:
    """Tell Flower's command line, which lives in ``home``, of a SuperLink."""
    storage.make_folder(home, storage.PRIVATE)
    trust = "insecure = true" if insecure else ""
    if authority and not insecure:
        trust = f"root-certificates = {json.dumps(authority)}"
    text = f"[superlink.{NAME}]\naddress = {json.dumps(address)}\n{trust}\n"
    storage.write_text(home / "config.toml", text)


def flwr(*words: str, env: dict[str, str] | None = None) -> Any:
    """The answer of Flower's command line, or its complaint in a sentence."""
    command = ["flwr", *words, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    start = done.stdout.find("{")
    try:
        told = json.loads(done.stdout[start:]) if start >= 0 else {}
    except ValueError:
        told = {}
    if done.returncode or not told.get("success", True):
        said = told.get("error-message") or done.stderr.strip() or done.stdout.strip()
        raise RunError(f"`flwr {words[0]}` failed: {' '.join(str(said).split())[-400:]}")
    return told


class Conductor:
    """Starts Flower's processes, submits the run and stays until it ends."""

    def __init__(self, run: Path, task: dict[str, Any]) -> None:
        self._run = run
        self._files = FlowerFiles(run)
        self._task = task
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def conduct(self) -> None:
        """Everything from the first process to the last."""
        task, joins = self._task, bool(self._task["superlink"])
        if not joins and not task["insecure"]:
            private_network()
        address = task["superlink"] or self._start()
        connect(self._files.home, address, task["tls_ca"], task["insecure"] or not joins)
        number = str(flwr("run", str(self._files.app), NAME)["run-id"])
        try:
            self._stay(number)
        except BaseException:
            if joins:
                flwr("stop", number, NAME)
            raise

    def _start(self) -> str:
        """A SuperLink and SuperNodes on free ports; the SuperLink's address."""
        port, *ports = free_ports(1 + self._task["nodes"])
        link = ["flower-superlink", "--insecure", "--host", LOOPBACK, "--port", str(port)]
        self._run_process("superlink", link)
        deadline = time.monotonic() + START_SECONDS
        while not answers(LOOPBACK, port):
            self._check(["superlink"])
            if time.monotonic() > deadline:
                raise self._failed("superlink", f"does not answer after {START_SECONDS:g} s")
            time.sleep(0.1)
        folder = self._files.folder.absolute()
        place: dict[str, Any] = {"data": str(folder / "data"), "state": str(folder / "state")}
        place |= {"num-partitions": len(ports), "allow": self._task["allow"]}
        for number, own in enumerate(ports):
            node = ["flower-supernode", "--insecure", "--superlink", f"{LOOPBACK}:{port}"]
            node += ["--host", LOOPBACK, "--port", str(own), "--node-config"]
            settings = {**place, "partition-id": number}.items()
            node += [" ".join(f"{name}={json.dumps(value)}" for name, value in settings)]
            self._run_process(f"node-{number}", node)
        return f"{LOOPBACK}:{port}"

    def _run_process(self, name: str, command: list[str]) -> None:
        with open(self._files.log(name), "ab") as output:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent,
            )

    def _stay(self, number: str) -> None:
        """Until the run has ended, or the command that wants it has."""
        seen, asked = False, time.monotonic()
        while not self._files.ended()[0]:
            self._check(self._needed(seen))
            if seen and not self._files.server_lives():
                self._confirm_death("it was killed")
            seen = seen or self._files.server_lives()
            if not seen and time.monotonic() - asked > STATUS_SECONDS:
                (status,) = flwr("list", NAME, "--run-id", number)["runs"]
                if status["status"].startswith("finished"):
                    self._confirm_death(status.get("status-details") or status["status"])
                asked = time.monotonic()
            ready, _, _ = select.select([sys.stdin], [], [], LOOK_SECONDS)
            if ready and not os.read(sys.stdin.fileno(), 1):
                raise RunError("the command was interrupted")

    def _needed(self, settled: bool) -> list[str]:
        """Without its SuperLink a federation is lost; nodes may die once the server is there."""
        nodes = [name for name in self._processes if name != "superlink"]
        some = any(self._processes[name].poll() is None for name in nodes)
        return ["superlink"] if settled and some else list(self._processes)

    def _check(self, names: list[str]) -> None:
        for name in names if self._processes else ():
            code = self._processes[name].poll()
            if code is not None:
                raise self._failed(name, f"ended with exit code {code}")

    def _failed(self, name: str, how: str) -> RunError:
        log = self._files.log(name)
        said = log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
        return RunError(f"{name} {how}: {last} (see {log})")

    def _confirm_death(self, why: str) -> None:
        """The server has ended; unless it says how in a moment, it did not mean to."""
        time.sleep(OUTCOME_SECONDS)
        if not self._files.ended()[0]:
            raise RunError(
                f"the server ended before the run did: {why}; continue with "
                f"`specgrad-fl resume {os.path.relpath(self._run)}`"
            )

    def stop(self) -> None:
        """End every process, nodes first, with all that they started."""
        for process in reversed(self._processes.values()):
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
            process.kill()


def free_ports(count: int) -> list[int]:
    """Ports on the loopback interface that are free at the moment."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]


def _end_with_parent() -> None:
    """Asks the kernel for a signal when the parent dies, even if it is killed."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)


def private_network() -> None:
    """Move this process to a network of its own: a loopback interface that no other user reaches.

    Flower's SuperLink takes orders from whoever reaches its port.
    """
    new_user, new_network = 0x10000000, 0x40000000
    set_flags, up = 0x8914, 1
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.unshare(new_network):
            if libc.unshare(new_user | new_network):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            fcntl.ioctl(handle, set_flags, struct.pack("16sh22x", b"lo", up))
    except (OSError, AttributeError) as error:
        raise RunError(
            "other users of this machine could give orders to the SuperLink, and it cannot have a "
            f"network of its own here ({error}); use a container or a machine of your own with "
            "--insecure, or `flwr run` in Flower's simulation"
        ) from error


def main(run: str, task: str) -> int:
    """The conductor's process."""
    files = FlowerFiles(Path(run))
    conductor = Conductor(Path(run), json.loads(task))
    try:
        conductor.conduct()
    except RunError as error:
        if not files.ended()[0]:
            files.end(str(error))
        return 2
    finally:
        conductor.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
