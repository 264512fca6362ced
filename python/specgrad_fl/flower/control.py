"""Orders to a SuperLink: register a node's key, start a run, ask how it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from specgrad_fl.errors import RunError
from specgrad_fl.flower.node import version

CLIENT_APP = "specgrad_fl.flower.client_app:app"
Answer = TypeVar("Answer")

# names modules of the installed package; no code travels
_PROJECT = f"""
[project]
name = "specgrad-fl"
version = "1.0.0"
description = "Federated training with spectral gradient filtering"
license = {{ text = "MIT" }}
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "specgrad"

[tool.flwr.app.components]
serverapp = "specgrad_fl.flower.server_app:app"
clientapp = "{CLIENT_APP}"

[tool.flwr.app.config]
run = ""
specgrad = ""
"""


class _Versions:
    """Tells the SuperLink which Flower this is."""

    def __init__(self) -> None:
        self._headers = dict(RuntimeVersionMetadata.from_local_component("flwr CLI").as_metadata())

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers.update(self._headers)
        return call_next(context)


@dataclass(frozen=True)
class Status:
    """Of a run on the SuperLink. ``details`` tells why it failed."""

    finished: bool
    details: str


class Control:
    """A connection to the SuperLink at ``HOST:PORT``; ``authority`` is a certificate file."""

    def __init__(self, address: str, authority: str, insecure: bool) -> None:
        self._address = address
        try:
            self._client = ControlHttpClient.from_server_address(
                server_address=address,
                insecure=insecure,
                root_certificates=_read(authority) if authority and not insecure else None,
                interceptors=[_Versions()],
            )
        except (OSError, ValueError) as error:
            raise RunError(f"tls_ca {authority} cannot be used: {error}") from error

    def close(self) -> None:
        self._client.close()

    def _ask(self, call: Callable[[Any], Answer], request: Any) -> Answer:
        """The answer, or one sentence."""
        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            raise RunError(
                f"the SuperLink at {self._address} refuses: {_refusal(error.response)}"
            ) from error
        except httpx.TransportError as error:
            hint = "check --superlink, and that `flower-superlink` runs there"
            if "certificate" in str(error).lower() or "ssl" in str(error).lower():
                hint = "check --tls-ca, and that the certificate names this host"
            raise RunError(
                f"the SuperLink at {self._address} cannot be reached: {error}; {hint}"
            ) from error

    def register(self, public_key: Path) -> None:
        """Let a node with this key join."""
        try:
            key = serialization.load_ssh_public_key(public_key.read_bytes())
            encoded = public_key_to_bytes(key)  # type: ignore[arg-type]
        except (OSError, ValueError) as error:
            raise RunError(f"{public_key} is no public key of a node: {error}") from error
        self._ask(self._client.RegisterNode, RegisterNodeRequest(public_key=encoded))

    def submit(self, run: Path) -> int:
        """Start the server for a run directory; the number of the run."""
        contents, _ = build_fab_from_files({"pyproject.toml": _PROJECT.encode()})
        fab = Fab(hashlib.sha256(contents).hexdigest(), contents, {})
        request = StartRunRequest(
            fab=fab_to_proto(fab),
            override_config=user_config_to_proto(
                {"run": str(run.absolute()), "specgrad": version()}
            ),
        )
        return self._ask(self._client.StartRun, request).run_id

    def status(self, number: int) -> Status:
        """How a run is."""
        runs = self._ask(self._client.ListRuns, ListRunsRequest(run_id=number)).run_dict
        run = runs[number]
        return Status(
            finished=run.status.status == "finished",
            details=run.status.details,
        )

    def stop(self, number: int) -> None:
        """End a run."""
        self._ask(self._client.StopRun, StopRunRequest(run_id=number))


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _refusal(response: httpx.Response) -> str:
    """The sentence in a refusal."""
    try:
        told = response.json()
    except ValueError:
        return f"{response.status_code} {response.reason_phrase}"
    for name in ("public_message", "message", "detail", "code"):
        if isinstance(told, dict) and told.get(name):
            return str(told[name])
    return str(told)
