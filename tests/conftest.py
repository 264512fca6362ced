"""What all tests share."""

import tempfile

import pytest
from hypothesis import HealthCheck, settings

# a loaded or slow machine is no failure
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("compiles") and " " in tempfile.gettempdir():
        pytest.skip("torch's compiler does not quote the name of a temporary folder with a space")
