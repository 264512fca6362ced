"""Processes of a federation on this machine: how they are started, watched and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from specgrad_fl import storage
from specgrad_fl.errors import RunError

LOOPBACK = "127.0.0.1"
STOP_SECONDS = 10.0


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
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "PYTHONUNBUFFERED": "1",
    }


def free_port() -> int:
    """A port on the loopback interface that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def check_port(host: str, port: int) -> None:
    """Refuse a port that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise RunError(
                f"port {port} of {host} cannot be used: {reason}; choose another --port"
            ) from error


def answers(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


class Process:
    """A guarded process; its output goes to the end of the file ``log``."""

    def __init__(
        self, name: str, command: list[str], env: dict[str, str], log: Path | None = None
    ) -> None:
        self.name = name
        self.log = log
        with contextlib.ExitStack() as stack:
            output = None
            if log is not None:
                storage.make_folder(log.parent)
                output = stack.enter_context(open(log, "ab"))
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "specgrad_fl.flower.guard", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._guard.poll() is None

    def check(self) -> None:
        """Refuse to go on without the process."""
        code = self._guard.poll()
        if code is not None:
            raise RunError(
                f"{self.name} ended with exit code {code}: {self.last_words()} (see {self.log})"
            )

    def last_words(self) -> str:
        """The last line of its log that says something."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log else ""
        spoken = [line.strip() for line in text.splitlines() if line.strip()]
        return spoken[-1] if spoken else "it said nothing"

    def wait(self) -> int:
        """Its exit code, when it ends."""
        return self._guard.wait()

    def stop(self) -> None:
        """End the process and everything it started."""
        if self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
        try:
            self._guard.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait()
