"""An experiment as a Flower app: a folder that ``flwr run`` takes, with every setting declared.

The folder holds one ``pyproject.toml`` that names modules of this package, so no code travels.
Flower's run configuration holds scalars: a table of options is one text in JSON.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from specgrad_fl import storage
from specgrad_fl.config import FIELDS, Config, check_names
from specgrad_fl.errors import ConfigError, RunError, installing

# releases on which the app was run; since ONE_PORT a SuperLink has one port for everything
OLDEST, ONE_PORT, NEWEST = (1, 28), (1, 41), (1, 42)

# of the command that submits the app, not of the app
COMMAND_KEYS = frozenset({"engine", "nodes", "workers"})
COMMAND_OPTIONS = ("insecure",)

_PROJECT = """# written by `specgrad-fl flower app`
[project]
name = "specgrad-experiment"
version = "1.0.0"
description = "Federated training with spectral gradient filtering"
license = { text = "MIT" }
dependencies = []

[tool.flwr.app]
publisher = "specgrad"

[tool.flwr.app.components]
serverapp = "specgrad_fl.flower.server_app:app"
clientapp = "specgrad_fl.flower.client_app:app"

# every setting; `flwr run . FEDERATION --run-config 'rounds=50'` changes one
[tool.flwr.app.config]
"""


def check_installed(oldest: tuple[int, int] = OLDEST) -> None:
    """Refuse to go on without a Flower that is known to work."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError(f"this needs Flower, which is not installed; {installing('fl,flower')}")
    found = metadata.version("flwr")
    if not oldest <= tuple(map(int, found.split(".")[:2])) <= NEWEST:
        low, high = (".".join(map(str, version)) for version in (oldest, NEWEST))
        raise ConfigError(
            f"this works with Flower {low} to {high}, and {found} is installed; "
            f"pip install 'flwr>={low},<{NEWEST[0]}.{NEWEST[1] + 1}'"
        )


def write(folder: Path, config: Config, out: str = "") -> None:
    """Write the app of an experiment; ``out`` is its run directory on the SuperLink's machine."""
    path = folder / "pyproject.toml"
    if path.exists():
        raise RunError(f"{path} exists; choose another --out, or remove it")
    settings = {"out": out, "specgrad": metadata.version("specgrad")}
    plain = config.replace(**{name: getattr(Config(), name) for name in COMMAND_OPTIONS})
    for name, value in plain.as_dict().items():
        if name not in COMMAND_KEYS:
            settings[name] = json.dumps(value) if isinstance(value, dict) else value
    storage.make_folder(folder)
    # what JSON writes of a scalar means the same in TOML
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    storage.write_text(path, _PROJECT + lines)


def read(run_config: Mapping[str, Any]) -> tuple[Config, str]:
    """The inverse of :func:`write`: the experiment in a run's configuration, and ``out``."""
    settings = dict(run_config)
    out, asked = str(settings.pop("out", "")), settings.pop("specgrad", None)
    if asked != metadata.version("specgrad"):
        raise RunError(
            f"the SuperLink's machine has specgrad {metadata.version('specgrad')} and the app was "
            f"written by {asked}; install the same version on both"
        )
    check_names(settings)
    for name, value in settings.items():
        if isinstance(getattr(Config(), name), dict):
            try:
                settings[name] = json.loads(value or "{}")
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"{name} is {value!r} in the run's configuration; write a table of options in "
                    f"JSON, as {name}='{{\"mu\": 0.01}}'"
                ) from error
        elif isinstance(FIELDS[name].default, float) and isinstance(value, int):
            settings[name] = float(value)
    return Config(**settings, engine="flower"), out
