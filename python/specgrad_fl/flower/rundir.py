"""The folder ``flower`` of a run directory.

identity      the name under which nodes keep this run's client states
outcome.json  how the server ended: ``{"error": null}``, or the sentence to show
alive         locked by the server as long as it lives
keys, logs, home, node-K  of a federation on this machine; a node has data, state and home
"""

from __future__ import annotations

import fcntl
import json
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specgrad_fl import storage
from specgrad_fl.errors import RunError
from specgrad_fl.runs import RunDirectory


class FlowerFiles:
    """Names of files, and the two that server and command share."""

    def __init__(self, run: RunDirectory) -> None:
        self.folder = run.path / "flower"
        self.outcome_path = self.folder / "outcome.json"
        self.alive_path = self.folder / "alive"
        self.home = self.folder / "home"
        self.keys = self.folder / "keys"

    def log(self, name: str) -> Path:
        """What a process of a federation on this machine says."""
        return self.folder / "logs" / f"{name}.txt"

    def identity(self) -> str:
        """The run's own name, drawn when it is first asked for."""
        path = self.folder / "identity"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            storage.write_text(path, uuid.uuid4().hex)
        return path.read_text(encoding="utf-8")

    @contextmanager
    def outcome(self) -> Iterator[None]:
        """Write how the block ends; a mistake that a user can set right as its sentence."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.alive_path, "wb") as alive:
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
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text(traceback.format_exc(), encoding="utf-8")
                error = f"the server failed; {log} has the reason"
                raise
            finally:
                storage.write_text(self.outcome_path, json.dumps({"error": error}))

    def server_lives(self) -> bool:
        """Whether a server is at work; its death, however it comes, unlocks the file."""
        try:
            with open(self.alive_path, "rb") as alive:
                fcntl.flock(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def ended(self) -> tuple[bool, str | None]:
        """Whether the server has ended, and the sentence if it failed."""
        if not self.outcome_path.is_file():
            return False, None
        return True, json.loads(self.outcome_path.read_text(encoding="utf-8"))["error"]
