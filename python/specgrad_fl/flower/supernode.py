"""A SuperNode with one warm client process: ``specgrad-fl flower node``."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from specgrad_fl.flower.processes import LOOPBACK


@dataclass(frozen=True)
class NodeSettings:
    """What a node must know. ``authority``: certificate file; ``key``: its private key."""

    superlink: str
    data: Path
    state: Path
    port: int
    authority: str = ""
    key: str = ""
    insecure: bool = False
    device: str = ""

    def command(self) -> list[str]:
        """The SuperNode's command line."""
        config = {"data": str(self.data.absolute()), "state": str(self.state.absolute())}
        if self.device:
            config["device"] = self.device
        command = ["flower-supernode", "--superlink", self.superlink]
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

    with tempfile.TemporaryDirectory(prefix="specgrad-node-") as scratch:
        return warm.serve(settings.command(), f"{LOOPBACK}:{settings.port}", Path(scratch))
