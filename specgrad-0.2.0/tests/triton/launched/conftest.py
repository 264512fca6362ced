"""These tests need a process with a stand-in driver; ``test_launched.py`` runs them so."""

import os
from pathlib import Path

import pytest

FOLDER = os.environ.get("SPECGRAD_STAND_IN_DRIVER")
collect_ignore_glob = [] if FOLDER else ["*"]


@pytest.fixture(scope="session")
def _the_device():
    from triton_tools.driver import Device

    return Device(Path(FOLDER))


@pytest.fixture
def device(_the_device):
    """The device of this process, with nothing left of other tests."""
    from triton_tools.compare import forget_programs

    forget_programs()
    _the_device.forget()
    return _the_device
