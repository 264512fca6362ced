"""Read and write TOML files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specgrad_fl.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(path: Path) -> dict[str, Any]:
    """The contents of a file that a user wrote."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also numbers and nesting beyond all bounds
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def written(settings: Mapping[str, Any]) -> str:
    """Settings as TOML: scalars first, then one table for each group of options.

    >>> print(written({"lr": 0.1, "options": {"fedprox.mu": 0.5}}), end="")
    lr = 0.1
    <BLANKLINE>
    [options]
    "fedprox.mu" = 0.5
    """
    lines = [f"{k} = {_toml(v)}" for k, v in settings.items() if not isinstance(v, dict)]
    for name, table in settings.items():
        if isinstance(table, dict) and table:
            lines += ["", f"[{name}]"]
            lines += [f"{_toml(key)} = {_toml(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
