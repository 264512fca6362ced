"""Runs ``interpreted/`` in a process of its own, with the interpreter switched on."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "interpreted"


def test_with_interpreter(request):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", FOLDER]
    command += ["-m", request.config.option.markexpr]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
