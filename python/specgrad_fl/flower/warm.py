"""One client process for all messages of a SuperNode.

Left to itself, a SuperNode starts a process for every message, and the process imports torch. This
one stays: it asks the SuperNode for tasks as Flower's own launcher does, answers them itself, and
keeps the model, the filter's plan and the libraries from one round to the next.
"""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import sys
import time
import traceback

import httpx
from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.common.config import get_fab_config
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from specgrad_fl.flower.control import CLIENT_APP
from specgrad_fl.flower.processes import Process

LOOK_SECONDS = 0.1
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def serve(command: list[str], env: dict[str, str], address: str) -> int:
    """Start the SuperNode ``command``, answer its tasks, and end with it; its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    secret = secrets.token_bytes(32)
    command = [*command, "--isolation", "process"]
    command += ["--superexec-auth-secret-file", _in_memory(secret)]
    node = Process("the SuperNode", command, env)
    try:
        importlib.import_module("specgrad_fl.flower.trainer")  # before the first round waits for it
        credentials = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE)
        look = _client(address, credentials)
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        while node.running():
            try:
                token = look.AcquireTask(wanted).token
            except httpx.HTTPError:  # not up yet, or already gone
                token = ""
            if token:
                _work(address, token)
            else:
                time.sleep(LOOK_SECONDS)
        return node.wait()
    finally:
        node.stop()


def _in_memory(secret: bytes) -> str:
    """A file that ends with this process, however it ends; others of the same user can read it."""
    handle = os.memfd_create("secret")
    os.write(handle, secret)
    return f"/proc/{os.getpid()}/fd/{handle}"


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _client(address: str, credentials: ProtobufClientInterceptor) -> RuntimeHttpClient:
    versions = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[versions, credentials],
    )


def _work(address: str, token: str) -> None:
    """One task; whatever goes wrong with it is told to the server and ends there."""
    client = _client(address, RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(lambda: _beat(client))
    heartbeat.start()
    context: Context | None = None
    status, details = SubStatus.COMPLETED, ""
    try:
        message, context, _, fab = pull_task_input(client)
        try:
            reply = _reply(message, context, fab)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            status, details = SubStatus.FAILED, str(error)
            failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details)
            reply = Message(failure, reply_to=message)
        push_message(client, reply, context)
    except (httpx.HTTPError, RuntimeError) as error:
        traceback.print_exc(file=sys.stderr)
        status, details = SubStatus.FAILED, str(error)
    finally:
        push_task_output(client, context, status, details)
        heartbeat.stop()
        client.close()


def _beat(client: RuntimeHttpClient) -> bool:
    """Tell the SuperNode that the task goes on; whether it was heard."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True


def _reply(message: Message, context: Context, fab: Fab) -> Message:
    from specgrad_fl.flower.client_app import app

    asked = get_fab_config(fab.content)["tool"]["flwr"]["app"]["components"]["clientapp"]
    if asked != CLIENT_APP:
        raise ValueError(
            f"this node serves {CLIENT_APP} and was asked for {asked}; start a plain "
            "`flower-supernode` for other applications"
        )
    return app(message, context)
