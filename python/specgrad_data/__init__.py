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

# module and function, which are imported when they are first needed, as torch is
LOADERS: dict[str, str] = {
    "digits": "digits.load",
    "cifar10": "cifar.load",
    "cifar100": "cifar.load",
    "tiny_imagenet": "tiny_imagenet.load",
    "femnist": "femnist.load",
    "mnist_by_writer": "mnist.load_mnist_by_writer",
    "bloodmnist": "mnist.load_bloodmnist",
    "yahoo_answers": "yahoo_answers.load",
    "fashion_mnist": "mnist.load_fashion_mnist",
    "cifar10_c": "cifar_c.load",
    "cifar100_c": "cifar_c.load",
}
OWN_LOADERS: dict[str, str] = {
    "npz": "own.load_npz",
    "parquet": "own.load_parquet",
    "images": "own.load_images",
}
# how they are written, and what is expected
OWN = {
    "npz:FILE": "x_train, y_train, x_test, y_test: uint8 images or token ids",
    "parquet:FOLDER": "train.parquet and test.parquet with images or texts",
    "images:FOLDER": "image files in train/CLASS and test/CLASS",
    "module:loader": "a function of yours that returns those arrays as a dictionary",
}


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
    if colon and form in OWN_LOADERS:
        loader, path = _loader(OWN_LOADERS[form]), Path(place)
    elif name in LOADERS:
        loader = _loader(LOADERS[name])
        path = (default_root() if root is None else Path(root)) / name
    else:
        known = [*LOADERS, *OWN]
        raise DataError(f"there is no data set {name!r}; {suggest(name, known)}")
    check_options(name, loader, options)
    return loader(path, **options)


def _loader(place: str) -> Callable[..., Dataset]:
    module, _, function = place.partition(".")
    return getattr(importlib.import_module(f"specgrad_data.{module}"), function)


def __getattr__(name: str) -> Any:
    """Load torch when it is first needed, so that ``--help`` answers at once."""
    if name != "Dataset":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("specgrad_data.dataset").Dataset


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
    specgrad_data.errors.DataError: size of toy is 'large'; choose a whole number of 0 or more
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
