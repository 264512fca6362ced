"""What all tests share."""

from hypothesis import HealthCheck, settings

# a loaded or slow machine is no failure
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
