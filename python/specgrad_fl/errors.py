"""User errors: one line, exit code 2, no traceback."""

from __future__ import annotations

from specgrad_data.errors import EXTRAS, installing, not_installed, suggest, version
from specgrad_data.errors import UserError as RunError

__all__ = [
    "EXTRAS",
    "ConfigError",
    "Diverged",
    "RunError",
    "installing",
    "not_installed",
    "suggest",
    "version",
]


class ConfigError(RunError):
    """A setting that cannot be used."""


class Diverged(RunError):
    """Weights or loss are no longer finite: the same settings would always end here."""
