"""Data sets by name, as tensors in memory.

>>> digits = load("digits")
>>> digits.train_x.shape, digits.num_classes
(torch.Size([1438, 1, 8, 8]), 10)
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specgrad_fl.data import digits
from specgrad_fl.data.base import DataError, Dataset, DataWarning
from specgrad_fl.data.catalog import ENTRIES, Entry

__all__ = ["DataError", "DataWarning", "Dataset", "Entry", "catalog", "default_root", "load"]

LOADERS: dict[str, Callable[..., Dataset]] = {
    "digits": digits.load,
}


def default_root() -> Path:
    """Where data sets are looked for: ``$SPECGRAD_DATA``, or ``data`` in this directory."""
    return Path(os.environ.get("SPECGRAD_DATA") or "data")


def catalog() -> list[Entry]:
    """Every data set that has a name, with files, checksums and addresses."""
    return list(ENTRIES.values())


def load(name: str, root: Path | None = None, **options: Any) -> Dataset:
    """The data set ``name``, read from the folder of that name under ``root``.

    >>> load("digit")
    Traceback (most recent call last):
    specgrad_fl.data.base.DataError: there is no data set 'digit'; did you mean 'digits'?
    """
    if name not in LOADERS:
        raise DataError(f"there is no data set {name!r}; {_suggest(name, list(LOADERS))}")
    loader = LOADERS[name]
    folder = (default_root() if root is None else Path(root)) / name
    _check_options(name, loader, options)
    return loader(folder, **options)


def _suggest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(sorted(known))}"


def _check_options(name: str, loader: Callable[..., Dataset], options: dict[str, Any]) -> None:
    allowed = list(inspect.signature(loader).parameters)[1:]
    for option in options:
        if option not in allowed:
            hint = _suggest(option, allowed) if allowed else "it takes none"
            raise DataError(f"{name} has no option {option!r}; {hint}")
