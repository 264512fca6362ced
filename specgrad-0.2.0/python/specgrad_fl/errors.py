"""User errors: one line, exit code 2, no traceback."""

from __future__ import annotations

from specgrad_data.errors import EXTRAS, UserError, installing, not_installed, suggest, version

__all__ = [
    "EXTRAS",
    "ConfigError",
    "Diverged",
    "RunError",
    "UserError",
    "installing",
    "not_installed",
    "printable",
    "suggest",
    "version",
]


class RunError(UserError):
    """A run that cannot begin or go on."""


class ConfigError(RunError):
    """A setting that cannot be used."""


class Diverged(RunError):
    """Weights or loss are no longer finite: the same settings would always end here."""


# of a text that somebody else wrote: enough for a sentence, too little to fill a disk
MOST_TEXT = 300


def printable(text: object, most: int = MOST_TEXT) -> str:
    r"""Escape control characters and shorten a text that came from elsewhere.

    >>> printable("no \x1b[31mroom")
    'no \\x1b[31mroom'
    """
    whole = str(text)
    shown = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in whole[:most]
    )
    return shown if len(whole) <= most else f"{shown}... ({len(whole):,} characters)"
