"""An experiment as a Flower app: a folder that ``flwr run`` takes, with every setting declared.

The folder holds one ``pyproject.toml`` that names modules of this package, so no code travels.
Flower's run configuration holds scalars: a table of options is one text in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from specgrad_fl import storage
from specgrad_fl.config import FIELDS, Config, check_names
from specgrad_fl.errors import ConfigError, RunError

# of the command that submits the app, not of the app
COMMAND_KEYS = frozenset({"engine", "nodes", "superlink", "tls_ca", "insecure", "workers"})

_PROJECT = """# written by `specgrad-fl flower app`
[project]
name = "specgrad-experiment"
version = "1.0.0"
description = "Federated training with spectral gradient filtering"
license = { text = "MIT" }
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "specgrad"

[tool.flwr.app.components]
serverapp = "specgrad_fl.flower.server_app:app"
clientapp = "specgrad_fl.flower.client_app:app"

# every setting; `flwr run . FEDERATION --run-config 'rounds=50'` changes one
[tool.flwr.app.config]
"""


def write(folder: Path, config: Config, out: str = "") -> None:
    """Write the app of an experiment; ``out`` is its run directory on the SuperLink's machine."""
    path = folder / "pyproject.toml"
    if path.exists():
        raise RunError(f"{path} exists; choose another --out, or remove it")
    settings = {"out": out, "specgrad": metadata.version("specgrad")}
    for name, value in config.as_dict().items():
        if name not in COMMAND_KEYS:
            settings[name] = json.dumps(value) if isinstance(value, dict) else value
    storage.make_folder(folder)
    # what JSON writes of a scalar means the same in TOML
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    storage.write_text(path, _PROJECT + lines)


def read(run_config: Mapping[str, Any]) -> tuple[Config, str]:
    """The inverse of :func:`write`: the experiment in a run's configuration, and ``out``.

    >>> read({"specgrad": metadata.version("specgrad"), "rounds": 2, "options": '{"mu": 0.1}'})[0]
    ... # doctest: +ELLIPSIS
    Config(...options={'mu': 0.1}...rounds=2...)
    """
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
            settings[name] = _table(name, value)
        elif isinstance(FIELDS[name].default, float) and isinstance(value, int):
            settings[name] = float(value)
    return Config(**settings, engine="flower"), out


def _table(name: str, text: Any) -> Any:
    try:
        return json.loads(text or "{}")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} is {text!r} in the run's configuration; write a table of options in JSON, "
            f"as {name}='{{\"mu\": 0.01}}'"
        ) from error
