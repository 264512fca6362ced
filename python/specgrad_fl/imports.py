"""A user's own code by name: ``module:attribute``, in the working directory or installed."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from specgrad_fl.errors import ConfigError


def imported(kind: str, name: str) -> Any:
    """What ``module:attribute`` names; ``kind`` is the setting that names it."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    if not (module and attribute) or module.startswith("."):
        raise ConfigError(f"{kind} {name!r} is no module:name, such as my_package.nets:net")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(f"{kind} {name!r}: cannot import {module!r}: {error}") from error
    except AttributeError as error:
        raise ConfigError(f"{kind} {name!r}: {module} has no {attribute!r}") from error
