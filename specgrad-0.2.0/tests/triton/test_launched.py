"""Runs ``launched/`` in a process of its own, on a stand-in for the CUDA driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from triton_tools import driver

FOLDER = Path(__file__).parent / "launched"


@pytest.mark.skipif(driver.why_not() is not None, reason=str(driver.why_not()))
def test_with_the_stand_in_driver(tmp_path, request):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", FOLDER]
    command += ["-m", request.config.option.markexpr]
    environment = {**os.environ, "SPECGRAD_STAND_IN_DRIVER": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
