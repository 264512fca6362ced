"""What all tests share."""

from hypothesis import HealthCheck, settings

# a loaded or slow machine is no failure
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# begun first, so that none of them is left to one process while the others have nothing to do
LONGEST = ("test_processes.py", "test_readme.py", "test_drift.py", "test_interpreted.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONGEST)
