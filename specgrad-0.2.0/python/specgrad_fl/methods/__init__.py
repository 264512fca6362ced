"""The federated methods by name, and your own as ``module:Class``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, get_type_hints

from specgrad_fl.config import checked
from specgrad_fl.errors import ConfigError, suggest
from specgrad_fl.methods import bundled
from specgrad_fl.methods.base import Federation, Local, Method, Round, weighted_sum
from specgrad_fl.own_code import chosen

__all__ = [
    "METHODS",
    "Federation",
    "Local",
    "Method",
    "Round",
    "build",
    "method_class",
    "own_options",
    "resolve_options",
    "weighted_sum",
]

METHODS: dict[str, type[Method]] = {kind.name: kind for kind in (Method, *bundled.METHODS)}


def method_class(name: str) -> type[Method]:
    """A bundled method, or the subclass of :class:`Method` that ``module:Class`` names."""
    found = chosen("method", name, METHODS, "module:Class")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"method {name!r} is not a subclass of specgrad_fl.methods.Method")
    return found


def own_options(name: str, options: dict[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """The part of a table that concerns one method, checked; ``fedprox.mu`` names its method.

    ``others`` are methods that the same table serves: what only they know is left to them.
    """
    kinds = get_type_hints(method_class(name).Options)
    fields = _fields(name)
    found: dict[str, Any] = {}
    for key, value in options.items():
        owner, _, option = key.rpartition(".")
        if owner and owner != name:
            if owner not in {*others, *METHODS}:
                raise ConfigError(f"option {key!r} names no method; {suggest(owner, METHODS)}")
            continue
        if option not in kinds:
            if not owner and any(option in _fields(other) for other in others):
                continue
            hint = suggest(option, kinds) if kinds else "it has none"
            raise ConfigError(f"method {name!r} has no option {option!r}; {hint}")
        told = f"option {option!r} of {name!r}"
        found[option] = checked(told, kinds[option], value, fields[option].metadata)
    return found


def resolve_options(name: str, options: dict[str, Any]) -> Any:
    """The method's ``Options``."""
    try:
        return method_class(name).Options(**own_options(name, options))
    except ValueError as error:
        raise ConfigError(f"method {name!r}: {error}") from error


def _fields(method: str) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(method_class(method).Options)}


def build(name: str, options: dict[str, Any], federation: Federation) -> Method:
    """The method, ready to use."""
    return method_class(name)(resolve_options(name, options), federation)
