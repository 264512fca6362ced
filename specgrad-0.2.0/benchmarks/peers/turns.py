"""Turns of contenders: one trains a round when it is told to, while the others wait.

Each is a process of its own (perhaps with children) that reads a line from one pipe before every
round and writes one to another after it, so that the one who measures needs none of its code.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.workloads import WORKLOADS, Workload

GO, DONE, WEIGHTS = "go", "done", "weights.pt"


class Turns:
    """The side of a contender: its workload, its settings, and the pipes."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("workload", choices=WORKLOADS)
        parser.add_argument("folder", type=Path)
        parser.add_argument("--channels-last", action="store_true")
        arguments = parser.parse_args()
        self.name: str = arguments.workload
        self.workload: Workload = WORKLOADS[self.name]
        self.folder: Path = arguments.folder
        self.channels_last: bool = arguments.channels_last
        self._rounds = 0

    def start(self) -> None:
        """Wait to be told to train the first round; everything is ready for it."""
        self._go = open(self.folder / GO)  # noqa: SIM115 (open as long as the process)
        self._done = open(self.folder / DONE, "w")  # noqa: SIM115
        self._say({"versions": {"torch": torch.__version__}})
        self._wait()

    def next(self, weights: Mapping[str, Tensor]) -> None:
        """A round is over; wait for the next turn. ``weights`` are the server's."""
        self._rounds += 1
        self._say({"round": self._rounds})
        if self._rounds == 1:
            copies = {name: tensor.detach().clone() for name, tensor in weights.items()}
            torch.save(copies, self.folder / WEIGHTS)
        self._wait()

    def _say(self, message: dict[str, Any]) -> None:
        self._done.write(json.dumps(message) + "\n")
        self._done.flush()

    def _wait(self) -> None:
        if not self._go.readline():  # nobody listens any more
            os._exit(0)


class Contender:
    """The side of the one who measures: starts a contender, gives it turns, ends it."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        for name in (GO, DONE):
            os.mkfifo(folder / name)
        self._folder = folder
        begun = time.perf_counter()
        with open(folder / "log.txt", "wb") as log:
            self._process = subprocess.Popen(
                [*command, str(folder)], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={**os.environ, **env}, start_new_session=True,
            )  # fmt: skip
        self._go = os.open(folder / GO, os.O_RDWR)  # does not wait for the other side
        self._done = open(os.open(folder / DONE, os.O_RDWR | os.O_NONBLOCK))  # noqa: SIM115
        self.versions = self._answer()["versions"]
        self.seconds_to_start = time.perf_counter() - begun

    def _answer(self) -> dict[str, Any]:
        line = ""
        while not line.endswith("\n"):
            line += self._done.readline()
            if not line:
                if self._process.poll() is not None:
                    log = (self._folder / "log.txt").read_text(errors="replace")
                    raise RuntimeError(f"{self._process.args} ended:\n{log[-3000:]}")
                time.sleep(0.0005)
        found: dict[str, Any] = json.loads(line)
        return found

    def turn(self) -> tuple[float, float]:
        """One round: its wall-clock and its CPU seconds, of all its processes."""
        before, begun = self._cpu(), time.perf_counter()
        os.write(self._go, b"go\n")
        self._answer()
        return time.perf_counter() - begun, self._cpu() - before

    def weights(self) -> dict[str, Tensor]:
        """The server's weights after the first round, which must be over."""
        found: dict[str, Tensor] = torch.load(self._folder / WEIGHTS)
        return found

    def mib(self) -> float:
        """Memory of all its processes now."""
        return mib_of(self._process.pid)

    def _cpu(self) -> float:
        ticks = 0
        for process in _family(self._process.pid):
            with contextlib.suppress(OSError):
                # user and system time, and those of children that have ended
                ticks += sum(map(int, _stat(process)[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the contender and all its processes."""
        family = _family(self._process.pid)
        for process in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()
        os.close(self._go)
        self._done.close()


def age() -> float:
    """Seconds since this process was started, its imports included."""
    started = int(_stat(os.getpid())[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def mib_of(root: int | str = "self") -> float:
    """Memory of a process and its descendants; what they share counts once.

    Pages of files, such as libraries, are left out: strangers that map them change their share.
    """
    total = 0
    for process in _family(root):
        with contextlib.suppress(OSError):  # it has just ended
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            for kind in ("Pss_Anon:", "Pss_Shmem:"):
                total += int(text.split(kind)[1].split()[0])
    return total / 1024


def written_by(root: int | str = "self") -> int:
    """Bytes that a process and its descendants have written to files and pipes so far."""
    total = 0
    for process in _family(root):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{process}/io").read_text().split("wchar:")[1].split()[0])
    return total


def _stat(process: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` after the name; the second is the parent."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _family(root: int | str) -> list[int]:
    """A process and all its descendants; ``self`` is this one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat(int(path.name))[1]), []).append(int(path.name))
    found = [os.getpid() if root == "self" else int(root)]
    for process in found:
        found += children.get(process, ())
    return found
