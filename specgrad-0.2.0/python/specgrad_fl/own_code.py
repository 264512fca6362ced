"""Plug-ins: a user's method, model or loader by name, ``module:attribute``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from specgrad_data import OWN_FORMS

from specgrad_fl.errors import ConfigError, RunError, suggest

_allowed: ContextVar[frozenset[str] | None] = ContextVar("names that may be imported", default=None)


@contextmanager
def restrict_imports(names: Iterable[str]) -> Iterator[None]:
    """Restrict plug-in imports to an allow-list."""
    before = _allowed.set(frozenset(names))
    try:
        yield
    finally:
        _allowed.reset(before)


def check_allowed(named: Mapping[str, Any], allow: Iterable[str], where: str) -> None:
    """Refuse code that a stored configuration names and this command does not.

    named: the settings that may name code, see ``Config.own_code``
    where: the file that has the configuration
    """
    allowed = frozenset(allow)
    for kind, name in named.items():
        form, colon, _ = str(name).partition(":")
        own_files = kind == "dataset" and form in OWN_FORMS
        if colon and not own_files and name not in allowed:
            raise ConfigError(
                f"{where} names code to run, {kind} {name!r}; if you trust it, name it again: "
                f"--allow {name}, or allow=[{name!r}] in Python"
            )


def beside(path: Path, name: str) -> bool:
    """Find out if the module that ``module:attribute`` names is a file in the folder of ``path``.

    Nothing is imported for that; a module of the same name elsewhere does not count.
    """
    module = name.partition(":")[0].partition(".")[0]
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    folder = path.resolve().parent
    files = (folder / f"{module}.py", folder / module / "__init__.py")
    return found is not None and found.origin is not None and Path(found.origin).resolve() in files


def chosen(kind: str, name: str, bundled: Mapping[str, Any], own: str) -> Any:
    """The object that a setting names: a bundled one, or a plug-in in the form ``own``."""
    if ":" in name:
        return imported(kind, name)
    if name not in bundled:
        module, _, attribute = own.partition(":")
        hint = f"{suggest(name, bundled)} One of your own is written {own}."
        if name.endswith(".py"):
            module = name.removesuffix(".py").replace("/", ".")
            hint = f"write {module}:NAME, where NAME is the {attribute} in {name}"
        raise ConfigError(f"there is no {kind} {name!r}; {hint}")
    return bundled[name]


def imported(kind: str, name: str) -> Any:
    """Import the plug-in ``module:attribute``; ``kind`` is the setting that names it."""
    allowed = _allowed.get()
    if allowed is not None and name not in allowed:
        raise ConfigError(
            f"{kind} {name!r} is not allowed on this machine; its operator can allow it by name "
            "when the node is started"
        )
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    if not (module and attribute) or module.startswith("."):
        raise ConfigError(f"{kind} {name!r} is no module:name, such as my_package.nets:net")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        if module.endswith(".py"):
            right = f"{module.removesuffix('.py').replace('/', '.')}:{attribute}"
            raise ConfigError(f"{kind} {name!r} names a file; write {right}") from error
        raise ConfigError(f"{kind} {name!r}: cannot import {module!r}: {error}") from error
    except AttributeError as error:
        raise ConfigError(f"{kind} {name!r}: {module} has no {attribute!r}") from error
    except Exception as error:  # whatever a user's module raises
        raise ConfigError(
            f"{kind} {name!r}: {module} cannot be imported: {type(error).__name__}: {error}",
            traceback.format_exc(),
        ) from error


@contextmanager
def attributing_errors(named: Mapping[str, str]) -> Iterator[None]:
    """Re-raise plug-in exceptions as RunError naming the plug-in.

    named: settings such as ``method`` and the ``module:attribute`` that each of them names
    """
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        own = {kind: name for kind, name in named.items() if ":" in name}
        if not own:
            raise
        raise _attributed(error, own) from error


def _attributed(error: Exception, own: Mapping[str, str]) -> RunError:
    frames = traceback.extract_tb(error.__traceback__)
    trace = "".join(traceback.format_exception(error))
    said = f"{type(error).__name__}: {error}"
    for kind, name in own.items():
        module = sys.modules.get(name.partition(":")[0])
        for frame in frames:
            if module is not None and frame.filename == getattr(module, "__file__", None):
                return RunError(f"{kind} {name!r} failed in {frame.name}: {said}", trace)
    names = " and ".join(f"{kind} {name!r}" for kind, name in own.items())
    return RunError(f"{said}; if {names} made it, the trace shows what was done with it", trace)
