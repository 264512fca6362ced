"""Worker processes that take one order after the other, as JSON over a socket pair.

A child ends when its parent does, however that ends: it reads the end of its socket.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from specgrad_fl.errors import RunError

Message = dict[str, Any]
SECONDS_TO_LEAVE = 1.0
# the key of a partial reply
PROGRESS = "progress"


class WorkerDied(RunError):
    """A child ended without an answer. ``order`` is the place of what it was busy with."""

    def __init__(self, number: int, code: int, order: int = -1) -> None:
        super().__init__(
            f"worker {number} ended with exit code {code}, perhaps for want of memory; resume, "
            "if need be with fewer --workers"
        )
        self.code, self.order = code, order


class Forked:
    """A process that begins as a copy of this one, so that it has its imports already.

    Takes the place of ``subprocess.Popen`` for ``python -m MODULE SOCKET``.
    """

    returncode: int | None = None

    def __init__(self, command: list[str], *, pass_fds: list[int], **_: Any) -> None:
        (socket,) = pass_fds
        with warnings.catch_warnings():
            # Python warns where other threads exist; the child uses nothing of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            self._begin(command[2:], socket)

    @staticmethod
    def _begin(command: list[str], socket: int) -> None:
        """Run the module as the child, with its socket as its only open file, and end."""
        code = 1
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.closerange(3, socket)
            os.closerange(socket + 1, os.sysconf("SC_OPEN_MAX"))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv = command
            sys.modules.pop(command[0], None)  # it is run, not imported
            runpy.run_module(command[0], run_name="__main__")
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)

    def wait(self, timeout: float = math.inf) -> int:
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, 0 if timeout == math.inf else os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a copy", timeout)
            else:
                time.sleep(0.001)
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)


class Pool:
    """A pool of processes that run one module; ``fork`` makes them copies of this process."""

    def __init__(self, module: str, count: int, threads: int, fork: bool = False) -> None:
        self.count = count
        self._module, self._threads, self._fork = module, threads, fork
        self._processes: list[subprocess.Popen[bytes] | Forked] = []
        self._links: list[Connection] = []

    def start(self) -> None:
        """Start all processes."""
        threads = str(self._threads)
        for _ in range(self.count):
            ours, theirs = Pipe()
            launch = Forked if self._fork else subprocess.Popen
            child = launch(
                [sys.executable, "-m", self._module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process, which decides what it means
                env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            )
            theirs.close()
            self._processes.append(child)
            self._links.append(ours)

    def _send(self, number: int, order: Message) -> None:
        try:
            self._links[number].send_bytes(json.dumps(order).encode())
        except OSError as error:
            raise WorkerDied(number, self._processes[number].wait()) from error

    def _receive(self, number: int) -> Message:
        try:
            reply = json.loads(self._links[number].recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerDied(number, self._processes[number].wait()) from error
        if "error" in reply:
            raise RunError(reply["error"], reply["trace"])
        if "crash" in reply:
            raise RuntimeError(f"worker {number} failed:\n{reply['crash']}")
        return reply

    def tell_each(self, orders: Iterable[Message]) -> None:
        """Give every child its order, and take all answers."""
        for number, order in enumerate(orders):
            self._send(number, order)
        for number in range(self.count):
            self._receive(number)

    def spread(self, orders: Sequence[Message], heard: Callable[[int, int, Message], None]) -> None:
        """Give each order to the next free child; ``heard(order, child, reply)`` of every reply."""
        waiting = list(enumerate(orders))[::-1]
        busy: dict[Any, tuple[int, int]] = {}
        free = list(range(self.count))[::-1]
        while waiting or busy:
            while waiting and free:
                index, order = waiting.pop()
                number = free.pop()
                self._send(number, order)
                busy[self._links[number]] = (index, number)
            for link in wait(list(busy)):
                index, number = busy[link]
                try:
                    reply = self._receive(number)
                except WorkerDied as death:
                    death.order = index
                    raise
                heard(index, number, reply)
                if PROGRESS not in reply:
                    del busy[link]
                    free.append(number)

    def close(self) -> None:
        """End all processes."""
        for link in self._links:
            link.close()
        try:
            for child in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(SECONDS_TO_LEAVE)
                    continue
                child.terminate()  # busy with something that nobody wants any more
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(SECONDS_TO_LEAVE)
        finally:  # also where an interrupt comes again
            for child in self._processes:
                if child.returncode is None:  # stopped, so that it sees no other signal
                    child.kill()
                    child.wait()


def serve(descriptor: int, answer: Callable[[Message, Callable[[Message], None]], Any]) -> None:
    """The child's side: answer orders until the parent hangs up.

    answer: called with an order and a way to send partial replies before the answer
    """
    link = Connection(descriptor)

    def send(reply: Message) -> None:
        link.send_bytes(json.dumps(reply).encode())

    while True:
        try:
            order = json.loads(link.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            reply = {"value": answer(order, lambda partial: send({PROGRESS: partial}))}
        except RunError as error:
            reply = {"error": str(error), "trace": error.trace}
        except Exception:
            reply = {"crash": traceback.format_exc()}
        try:
            send(reply)
        except OSError:
            return
