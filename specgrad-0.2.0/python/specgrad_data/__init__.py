"""Data sets by name, as tensors in memory.

>>> digits = load("digits")
>>> digits.train_x.shape, digits.num_classes
(torch.Size([1438, 1, 8, 8]), 10)
"""

from __future__ import annotations

import importlib
import inspect
import os
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgrad_data.catalog import ENTRIES, Entry
from specgrad_data.errors import DataError, DataWarning, suggest

if TYPE_CHECKING:
    from specgrad_data.dataset import Dataset

__all__ = ["DataError", "DataWarning", "Dataset", "Entry", "catalog", "default_root", "load"]

# how a user's own data are written, and what is expected; `own` has a loader for each form
OWN = {
    "npz:FILE": "x_train, y_train, x_test, y_test: uint8 images or token ids",
    "parquet:FOLDER": "train.parquet and test.parquet with images or texts",
    "images:FOLDER": "image files in train/CLASS and test/CLASS",
    "module:loader": "a function of yours that returns those arrays as a dictionary",
}
OWN_FORMS = ("npz", "parquet", "images")


def default_root() -> Path:
    """Where data sets are looked for: ``$SPECGRAD_DATA``, or ``data`` in this directory."""
    return Path(os.environ.get("SPECGRAD_DATA") or "data")


def catalog() -> list[Entry]:
    """Every data set that has a name, with files, checksums and addresses."""
    return list(ENTRIES.values())


def load(name: str, root: Path | None = None, **options: Any) -> Dataset:
    """The data set ``name``, read from the folder of that name under ``root``.

    A user's own data are ``npz:FILE``, ``parquet:FOLDER`` or ``images:FOLDER``.

    >>> load("digit")
    Traceback (most recent call last):
    specgrad_data.errors.DataError: there is no data set 'digit'; did you mean 'digits'?
    """
    form, colon, place = name.partition(":")
    if colon and form in OWN_FORMS:
        where, path = f"own.load_{form}", Path(place)
    elif name in ENTRIES:
        where = ENTRIES[name].loader or f"{name}.load"
        path = (default_root() if root is None else Path(root)) / name
    else:
        raise DataError(f"there is no data set {name!r}; {_own_form(name)}")
    # imported when it is needed, as torch is
    module, _, function = where.partition(".")
    loader = getattr(importlib.import_module(f"specgrad_data.{module}"), function)
    check_options(name, loader, options)
    return loader(path, **options)


def _own_form(name: str) -> str:
    """The form that a path stands for, or the nearest name.

    >>> _own_form("own.npz")
    'your own data are written npz:own.npz'
    """
    path = Path(name)
    forms = {".npz": f"npz:{name}", ".parquet": f"parquet:{name}", ".py": f"{path.stem}:LOADER"}
    if path.suffix in forms:
        return f"your own data are written {forms[path.suffix]}"
    if path.is_dir():
        form = "images" if (path / "train").is_dir() else "parquet"
        return f"your own data are written {form}:{name}"
    return suggest(name, [*ENTRIES, *OWN])


def __getattr__(name: str) -> Any:
    """Load torch when it is first needed, so that ``--help`` answers at once."""
    if name != "Dataset":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("specgrad_data.dataset").Dataset


# how an option may be annotated, what fits, and how that is told
_KINDS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number of 0 or more"),
    float: ((int, float), "a number"),
    str: (str, "text"),
    Sequence[str]: ((list, tuple), "a list of names"),
    types.NoneType: (types.NoneType, "nothing"),
}


def check_options(name: str, loader: Callable[..., Any], options: dict[str, Any]) -> None:
    """Refuse options that ``loader`` does not have, or of another type than its annotations.

    >>> def loader(folder, size: int | None = None): ...
    >>> check_options("toy", loader, {"size": "large"})
    Traceback (most recent call last):
    specgrad_data.errors.DataError: size of toy is 'large'; choose a whole number of 0 or more
    """
    allowed = list(inspect.signature(loader).parameters)[1:]
    hints = typing.get_type_hints(loader)
    for option, value in options.items():
        if option not in allowed:
            advice = suggest(option, allowed) if allowed else "it takes none"
            raise DataError(f"{name} has no option {option!r}; {advice}")
        hint = hints[option]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if not any(_fits(value, kind) for kind in kinds):
            raise DataError(f"{option} of {name} is {value!r}; choose {_KINDS[kinds[0]][1]}")


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):  # which is an int to Python
        return kind is bool
    if kind is int and isinstance(value, int):
        return value >= 0
    names = value if isinstance(value, (list, tuple)) else ()
    return isinstance(value, _KINDS[kind][0]) and all(isinstance(name, str) for name in names)
