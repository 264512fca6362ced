"""Commands and engines that packages register by entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

# functions that add commands to `specgrad-fl`, called with its `flags.Commands`
COMMANDS = "specgrad_fl.commands"
# modules with `check` of a configuration and `play` of a run, for `--engine NAME`
ENGINES = "specgrad_fl.engines"


def registered(group: str) -> dict[str, EntryPoint]:
    """Find the entry points of the installed packages by name.

    >>> "flower" in registered(ENGINES)
    True
    """
    return {entry.name: entry for entry in entry_points(group=group)}
