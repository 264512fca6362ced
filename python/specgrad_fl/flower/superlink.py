"""A SuperLink on this machine, with TLS and node keys unless told otherwise."""

from __future__ import annotations

import time
from pathlib import Path

from specgrad_fl.errors import RunError
from specgrad_fl.flower.control import Control
from specgrad_fl.flower.processes import Process, answers, check_port, environment
from specgrad_fl.flower.security import Keys

START_SECONDS = 60.0


class SuperLink:
    """Started, answering, and knowing its nodes' public keys."""

    def __init__(self, host: str, port: int, keys: Keys | None, home: Path, log: Path) -> None:
        check_port(host, port)
        command = ["flower-superlink", "--host", host, "--port", str(port)]
        if keys is None:
            command += ["--insecure"]
        else:
            command += ["--ssl-ca-certfile", str(keys.authority)]
            command += ["--ssl-certfile", str(keys.certificate), "--ssl-keyfile", str(keys.key)]
            command += ["--enable-supernode-auth"]
        self.address = f"{host}:{port}"
        self._authority = "" if keys is None else str(keys.authority)
        self._insecure = keys is None
        self.process = Process("the SuperLink", command, environment(home), log)
        try:
            self._wait(host, port)
            self._register([] if keys is None else keys.public())
        except BaseException:
            self.process.stop()
            raise

    def control(self) -> Control:
        """A connection for orders."""
        return Control(self.address, self._authority, self._insecure)

    def _wait(self, host: str, port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not answers(host, port):
            self.process.check()
            if time.monotonic() > deadline:
                raise RunError(
                    f"the SuperLink does not answer at {self.address} after {START_SECONDS:g} s; "
                    f"see {self.process.log}"
                )
            time.sleep(0.1)

    def _register(self, public_keys: list[Path]) -> None:
        if not public_keys:
            return
        control = self.control()
        try:
            for path in public_keys:
                control.register(path)
        finally:
            control.close()
