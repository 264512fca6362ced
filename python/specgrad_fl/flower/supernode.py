"""A SuperNode with one warm client process: ``specgrad-fl flower node``."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from specgrad_fl.flower import quick
from specgrad_fl.flower.processes import LOOPBACK, environment


@dataclass(frozen=True)
class NodeSettings:
    """What a node must know.

    authority: certificate file; key: its private key; allow: names of models and methods of one's
        own that a server may ask for; poll: seconds between looks for messages
    """

    superlink: str
    data: Path
    state: Path
    port: int
    authority: str = ""
    key: str = ""
    insecure: bool = False
    device: str = ""
    allow: tuple[str, ...] = ()
    poll: float = 0.3

    def command(self) -> list[str]:
        """The SuperNode's command line."""
        config = {"data": str(self.data.absolute()), "state": str(self.state.absolute())}
        if self.device:
            config["device"] = self.device
        if self.allow:
            config["allow"] = ",".join(self.allow)
        command = [sys.executable, "-m", "specgrad_fl.flower.quick"]
        command += ["--superlink", self.superlink]
        command += ["--host", LOOPBACK, "--port", str(self.port)]
        command += ["--node-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())]
        if self.insecure:
            return [*command, "--insecure"]
        if self.authority:
            command += ["--root-certificates", self.authority]
        if self.key:
            command += ["--auth-supernode-private-key", self.key]
        return command


def run(settings: NodeSettings) -> int:
    """Serve until the SuperNode ends; its exit code."""
    from specgrad_fl.flower import warm

    env = {**environment(settings.state / "home"), quick.VARIABLE: str(settings.poll)}
    return warm.serve(settings.command(), env, f"{LOOPBACK}:{settings.port}")
