"""Options of a loader, checked against its signature before it runs."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from specgrad_fl.data.base import DataError
from specgrad_fl.errors import suggest

_EXPECTED = {
    bool: "true or false",
    int: "a whole number of 0 or more",
    float: "a number",
    str: "text",
    Sequence[str]: "a list of names",
}


def check_options(name: str, loader: Callable[..., Any], options: dict[str, Any]) -> None:
    """Refuse options that ``loader`` does not have, or of another type than its annotations.

    >>> def loader(folder, size: int | None = None): ...
    >>> check_options("toy", loader, {"size": "large"})
    Traceback (most recent call last):
    specgrad_fl.data.base.DataError: size of toy is 'large'; choose a whole number of 0 or more
    """
    allowed = list(inspect.signature(loader).parameters)[1:]
    hints = typing.get_type_hints(loader)
    for option, value in options.items():
        if option not in allowed:
            hint = suggest(option, allowed) if allowed else "it takes none"
            raise DataError(f"{name} has no option {option!r}; {hint}")
        kinds = _alternatives(hints[option])
        if not any(_fits(value, kind) for kind in kinds):
            raise DataError(f"{option} of {name} is {value!r}; choose {_EXPECTED[kinds[0]]}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """``int | None`` as its parts; a plain type as itself."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _fits(value: object, kind: Any) -> bool:
    if kind is types.NoneType:
        return value is None
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and value >= 0
    if kind is float:
        return isinstance(value, (int, float))
    if kind is str:
        return isinstance(value, str)
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
