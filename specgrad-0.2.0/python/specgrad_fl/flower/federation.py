"""`train --engine flower`: a run on stock Flower processes of this machine.

The folder ``flower`` of a run directory:

app       what is submitted, see ``app.py``
identity  the name under which nodes keep this run's client states
data, state, home, logs   of the processes on this machine

The command starts this module as a process of its own, the conductor, which starts Flower's
processes in a network that nobody else can reach, follows the run and ends them with itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specgrad_data import Dataset

from specgrad_fl import storage, training
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError
from specgrad_fl.flower import app, place
from specgrad_fl.progress import Watcher
from specgrad_fl.runs import RunDirectory

NAME, LOOPBACK = "specgrad", "127.0.0.1"
LOOK_SECONDS, STOP_SECONDS = 0.2, 10.0


def check(config: Config) -> None:
    """Refuse settings that cannot work, before anything is written."""
    app.check_installed(app.ONE_PORT)
    least, most = config.min_clients, config.active
    if least > most:
        raise ConfigError(f"min_clients is {least} and active {most}; no round could reach it")


def answers(host: str, port: int) -> bool:
    """Return true if somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def play(run: RunDirectory, dataset: Dataset, watch: Watcher) -> RunDirectory:
    """Play the rounds that are left of a run, on a federation of this machine.

    The caller holds the federation's lock, the server takes the run's own.
    """
    config, folder = run.config(), run.path.absolute() / "flower"
    with run.locked():  # no server is at work, one that was started by hand included
        for name in ("app", "data"):
            shutil.rmtree(folder / name, ignore_errors=True)
        app.write(folder / "app", config, str(folder.parent))
        clients = training.partition_of(run, config, dataset).clients
        place.write_shards(config, dataset, clients, [folder / "data"])
    # whoever starts this federation operates its nodes, and named these
    own = ",".join(name for name in (config.model, config.method) if ":" in name)
    task = [min(config.nodes, config.clients), own, config.insecure]
    storage.make_folder(folder / "logs")
    try:
        _follow(run, [str(folder), json.dumps(task)], watch)
    except RunError as error:
        with contextlib.suppress(RunError), run.locked():
            if not run.load_rounds() and str(folder) not in str(error):
                shutil.rmtree(folder, ignore_errors=True)
        raise
    return run


def _follow(run: RunDirectory, task: list[str], watch: Watcher) -> None:
    """Start a conductor and report rounds as they are recorded, until it ends."""
    config, last = run.config(), run.load_rounds()
    log = Path(task[0]) / "logs" / "conductor.txt"
    with open(log, "wb") as output:
        conductor = subprocess.Popen(
            [sys.executable, "-m", __name__, *task],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(Path(task[0]) / "home"),
            start_new_session=True,
        )
    try:
        code, size = None, -1
        while code is None:
            code = conductor.poll()
            now = run.metrics_path.stat().st_size if run.metrics_path.is_file() else 0
            if now != size:  # the file is read only when it has changed
                size = now
                for record in run.records()[last:]:
                    last = record["round"]
                    watch(record, config)
            time.sleep(LOOK_SECONDS)
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it ends what it started
            conductor.communicate(timeout=2 * STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(conductor.pid, signal.SIGKILL)
        conductor.wait()
    if code:
        failed = f"Flower could not be started; {log} has the reason"
        raise RunError(last_line(log) if code == 2 else failed)


def last_line(log: Path) -> str:
    """Return the last line that a process wrote."""
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")


def environment(home: Path) -> dict[str, str]:
    """Flower quiet and offline, looking for work often, with this Python's commands first."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "PYTHONUNBUFFERED": "1",
    }


def connect(home: Path, address: str, authority: str = "") -> None:
    """Tell Flower's command line, which lives in ``home``, of a SuperLink."""
    storage.make_folder(home, storage.PRIVATE)
    trust = f"root-certificates = {json.dumps(authority)}" if authority else "insecure = true"
    text = f"[superlink.{NAME}]\naddress = {json.dumps(address)}\n{trust}\n"
    storage.write_text(home / "config.toml", text)


def flwr(*words: str, env: dict[str, str] | None = None) -> Any:
    """The answer of Flower's command line, or its complaint in a sentence."""
    command = ["flwr", *words, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    try:
        told = json.loads(done.stdout[done.stdout.find("{") :])
    except ValueError:
        told = {"success": False}
    if done.returncode or not told.get("success", True):
        said = told.get("error-message") or done.stderr.strip() or done.stdout.strip()
        raise RunError(f"`flwr {words[0]}` failed: {' '.join(str(said).split())[-400:]}")
    return told


class Conductor:
    """Starts Flower's processes, submits the run and stays until it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def conduct(self, nodes: int, allow: str, insecure: bool) -> None:
        """Everything from the first process to the last."""
        if not insecure:
            private_network()
        connect(self._folder / "home", self._federation(nodes, allow))
        self._number = str(flwr("run", str(self._folder / "app"), NAME)["run-id"])
        self._start("server", ["flwr", "log", self._number, NAME, "--stream"])
        self._until((self._folder.parent / "summary.json").is_file)

    def _federation(self, nodes: int, allow: str) -> str:
        """A SuperLink and SuperNodes on free ports; the SuperLink's address."""
        port, *ports = free_ports(1 + nodes)
        address = f"{LOOPBACK}:{port}"
        here = ["--insecure", "--host", LOOPBACK, "--port"]
        self._start("superlink", ["flower-superlink", *here, str(port)])
        self._until(lambda: answers(LOOPBACK, port))
        shared: dict[str, Any] = {name: str(self._folder / name) for name in ("data", "state")}
        shared |= {"num-partitions": nodes, "allow": allow}
        for number, own in enumerate(ports):
            settings = {**shared, "partition-id": number}.items()
            place = " ".join(f"{name}={json.dumps(value)}" for name, value in settings)
            node = ["flower-supernode", *here, str(own), "--superlink", address]
            self._start(f"node-{number}", [*node, "--node-config", place])
        return address

    def _start(self, name: str, command: list[str]) -> None:
        with open(self._log(name), "wb") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._processes[name] = subprocess.Popen(
                command, preexec_fn=_end_with_parent, **streams
            )

    def _log(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.txt"

    def _until(self, happened: Callable[[], bool]) -> None:
        """Wait for something, as long as all processes live and the command wants it."""
        while not happened():
            for name, process in self._processes.items():
                if process.poll() is not None and not happened():
                    raise self._ended(name, process.returncode)
            if select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
                raise RunError("the command was interrupted")

    def _ended(self, name: str, code: int) -> RunError:
        """Why there is nothing more to wait for."""
        log = self._log(name)
        if name != "server":
            return RunError(f"{name} ended with exit code {code}: {last_line(log)} (see {log})")
        (found,) = flwr("list", NAME, "--run-id", self._number)["runs"]
        told = found.get("status-details") or found["status"]
        sentence = told.partition("exception: ")[2]
        # an exception of ours is for the user, with all that there is to say
        if sentence and re.search(r"^specgrad_[\w.]+: ", log.read_text("utf-8"), re.MULTILINE):
            return RunError(sentence)
        again = f"continue with `specgrad-fl resume {os.path.relpath(self._folder.parent)}`"
        return RunError(f"the server ended before the run did: {told} (see {log}); {again}")

    def stop(self) -> None:
        """End every process, nodes first, with all that they started in groups of their own."""
        started = [Path(f"/proc/{p.pid}/task/{p.pid}/children") for p in self._processes.values()]
        groups = [int(n) for path in started if path.exists() for n in path.read_text().split()]
        for process in reversed(self._processes.values()):
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
            process.kill()
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


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
    """Move this process to a network of its own: a SuperLink obeys whoever reaches its port."""
    new_user, new_network, set_flags, up = 0x10000000, 0x40000000, 0x8914, 1
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
            "--engine-option insecure=true, or `flwr run` in Flower's simulation"
        ) from error


def main(folder: str, task: str) -> int:
    """The conductor's process; what is forked has one thread, as a user namespace demands."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    conductor = Conductor(Path(folder))
    try:
        conductor.conduct(*json.loads(task))
        return 0
    except RunError as error:  # the last line is for the user
        print(" ".join(str(error).splitlines()), flush=True)
        return 2
    finally:
        conductor.stop()


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
