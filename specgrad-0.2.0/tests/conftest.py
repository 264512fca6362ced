"""Fixtures and settings shared by all tests."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# a loaded or slow machine is no failure
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

HERE = Path(__file__).parent
PAPER = HERE / "study" / "paper"
# What takes longest comes first: begun last, it would keep the other processes waiting.
LONGEST = [
    HERE / name
    for name in (
        "test_readme.py",
        "fl/flower/test_processes.py",
        "triton/test_ptx.py",  # compiles what others find compiled
        "study/paper/test_smoke.py",
        "triton/test_interpreted.py",
        "triton/test_launched.py",
        "triton/test_warps.py",
        "kernels/test_layers.py",
        "fl/test_resume.py",
        "test_drift.py",  # in make test-all
    )
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # one process for a file, whose tests share what they set up, and one for a preset's runs
        shared = PAPER if PAPER in item.path.parents else item.path
        if item.config.getoption("loadgroup", default=False):
            item.add_marker(pytest.mark.xdist_group(f"{shared.parent.name}/{shared.name}"))
    items.sort(key=lambda item: LONGEST.index(item.path) if item.path in LONGEST else len(LONGEST))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("compiles") and " " in tempfile.gettempdir():
        pytest.skip("torch's compiler does not quote the name of a temporary folder with a space")
