"""Stock Flower processes for tests: a SuperLink, SuperNodes with keys of their own, `flwr`."""

from __future__ import annotations

import os
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from specgrad_fl.flower import app, keys
from specgrad_fl.flower.federation import LOOPBACK, answers, connect, environment, flwr, free_ports

# generous: other tests and other people may be using the machine
PATIENCE = 600
VERSION = tuple(map(int, metadata.version("flwr").split(".")[:2]))


def waited(condition: Any, process: subprocess.Popen | None = None) -> Any:
    """Wait until something becomes true, while a process runs."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)
    return found


class Stock:
    """A federation in a folder; with TLS and node keys, or for Flower's simulation."""

    def __init__(self, folder: Path, nodes: int, simulation: bool = False) -> None:
        self.folder, self.simulation = folder, simulation
        self.keys = folder / "keys"
        self.home = folder / "home"
        # Ray's workers would give way to every other process of the machine
        self.env = {
            **environment(self.home), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0",
        }  # fmt: skip
        self.fleet, self.control, self._runtime, *self._ports = free_ports(4 + nodes)
        if VERSION >= (1, 41):  # one port for everything
            self.fleet = self.control = self._runtime
        self.processes: dict[str, subprocess.Popen] = {}
        self.runs: dict[str, str] = {}
        self._names = [f"node-{number}" for number in range(nodes)]

    def _start(self, name: str, command: list[str]) -> subprocess.Popen:
        with open(self.folder / f"{name}.txt", "wb") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdout=log, stderr=subprocess.STDOUT
            )
        return self.processes[name]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text(errors="replace")

    def start(self) -> Stock:
        """The SuperLink, which then knows the keys of its nodes; and the nodes."""
        command = ["flower-superlink"]
        if VERSION >= (1, 41):
            command += ["--host", LOOPBACK, "--port", str(self._runtime)]
        else:
            command += ["--fleet-api-address", f"{LOOPBACK}:{self.fleet}"]
            command += ["--control-api-address", f"{LOOPBACK}:{self.control}"]
            command += ["--serverappio-api-address", f"{LOOPBACK}:{self._runtime}"]
        if self.simulation:
            command += ["--simulation", "--insecure"]
        else:
            keys.make(self.keys, [LOOPBACK], self._names)
            command += ["--ssl-ca-certfile", str(self.keys / "ca.crt"), "--enable-supernode-auth"]
            command += ["--ssl-certfile", str(self.keys / "superlink.crt")]
            command += ["--ssl-keyfile", str(self.keys / "superlink.key")]
        link = self._start("superlink", command)
        waited(lambda: answers(LOOPBACK, self.control), link)
        authority = "" if self.simulation else str(self.keys / "ca.crt")
        connect(self.home, f"{LOOPBACK}:{self.control}", authority)
        for number, name in enumerate(self._names):
            flwr("supernode", "register", str(self.keys / f"{name}.pub"), "specgrad", env=self.env)
            self.node(name, self.keys / name, f"partition-id={number} num-partitions=2")
        return self

    def node(self, name: str, key: Path, place: str) -> subprocess.Popen:
        """A SuperNode that knows nothing but its number."""
        own = f"{LOOPBACK}:{self._ports.pop()}"
        command = ["flower-supernode", "--superlink", f"{LOOPBACK}:{self.fleet}"]
        command += ["--root-certificates", str(self.keys / "ca.crt")]
        command += ["--auth-supernode-private-key", str(key), "--node-config", place]
        if VERSION >= (1, 41):
            command += ["--host", LOOPBACK, "--port", own.rpartition(":")[2]]
        else:
            command += ["--clientappio-api-address", own]
        return self._start(name, command)

    def submit(self, config: Any, out: str, *more: str) -> str:
        """Start a run on the federation; its number."""
        folder = self.folder / f"app-{out}"
        app.write(folder, config, str(self.folder / out))
        self.runs[out] = str(flwr("run", str(folder), "specgrad", *more, env=self.env)["run-id"])
        return self.runs[out]

    def said(self, number: str) -> str:
        """Output of a run's server, when it has ended."""
        follow = ["flwr", "log", number, "specgrad", "--stream"]
        return subprocess.run(
            follow, env=self.env, timeout=PATIENCE, capture_output=True, text=True, check=False
        ).stdout

    def status(self, number: str) -> str:
        """Flower's status of a run; asking costs a second of computing."""
        (found,) = flwr("list", "specgrad", "--run-id", number, env=self.env)["runs"]
        return found["status"]

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(PATIENCE)


def files_others_can_read(folder: Path) -> list[str]:
    """Files and folders below a folder that the modes of none above them close to other users."""
    found = []
    for place, folders, files in os.walk(folder):
        if Path(place).stat().st_mode & 0o077 == 0:
            folders.clear()
            continue
        found += [
            place,
            *(f"{place}/{f}" for f in files if os.stat(f"{place}/{f}").st_mode & 0o044),
        ]
    return found
