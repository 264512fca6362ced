"""Runs a command and ends it, with all it started, when whoever started the guard is gone.

Standard input is the life line: its other end is held by the parent, and is closed even when the
parent is killed. Everything runs in one process group of its own.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

LOOK_SECONDS = 0.1
GRACE_SECONDS = 3.0


def main(command: list[str]) -> int:
    """Run ``command`` until it ends or the life line is cut."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the group is told together, the child decides
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_listen)
    while child.poll() is None:
        ready, _, _ = select.select([sys.stdin], [], [], LOOK_SECONDS)
        if ready and not os.read(sys.stdin.fileno(), 1):
            _end(child)
    os.killpg(0, signal.SIGTERM)  # what the command may have left
    return child.returncode


def _listen() -> None:
    """The child handles the signals that the guard ignores."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _end(child: subprocess.Popen[bytes]) -> None:
    os.killpg(0, signal.SIGTERM)
    patience = time.monotonic() + GRACE_SECONDS
    while child.poll() is None and time.monotonic() < patience:
        time.sleep(LOOK_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
