"""Data sets by name, as tensors in memory.

>>> digits = load("digits")
>>> digits.train_x.shape, digits.num_classes
(torch.Size([1438, 1, 8, 8]), 10)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specgrad_fl.data import (
    bloodmnist,
    cifar,
    cifar_c,
    digits,
    fashion_mnist,
    femnist,
    mnist_by_writer,
    own,
    tiny_imagenet,
    yahoo_answers,
)
from specgrad_fl.data.base import DataError, Dataset, DataWarning
from specgrad_fl.data.catalog import ENTRIES, Entry
from specgrad_fl.data.options import check_options
from specgrad_fl.errors import suggest

__all__ = ["DataError", "DataWarning", "Dataset", "Entry", "catalog", "default_root", "load"]

LOADERS: dict[str, Callable[..., Dataset]] = {
    "digits": digits.load,
    "cifar10": cifar.load_cifar10,
    "cifar100": cifar.load_cifar100,
    "tiny_imagenet": tiny_imagenet.load,
    "femnist": femnist.load,
    "mnist_by_writer": mnist_by_writer.load,
    "bloodmnist": bloodmnist.load,
    "yahoo_answers": yahoo_answers.load,
    "fashion_mnist": fashion_mnist.load,
    "cifar10_c": cifar_c.load_cifar10_c,
    "cifar100_c": cifar_c.load_cifar100_c,
}
OWN_LOADERS: dict[str, Callable[..., Dataset]] = {
    "npz": own.load_npz,
    "parquet": own.load_parquet,
    "images": own.load_images,
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

    A user's own data are ``npz:FILE``, ``parquet:FOLDER``, ``images:FOLDER``, or the arrays that
    ``module:loader`` returns under the names of an npz file.

    >>> load("digit")
    Traceback (most recent call last):
    specgrad_fl.data.base.DataError: there is no data set 'digit'; did you mean 'digits'?
    """
    form, colon, place = name.partition(":")
    if colon and form in OWN_LOADERS:
        loader, path = OWN_LOADERS[form], Path(place)
    elif name in LOADERS:
        loader = LOADERS[name]
        path = (default_root() if root is None else Path(root)) / name
    elif colon:
        return own.load_module(name, **options)
    else:
        known = [*LOADERS, *OWN]
        raise DataError(f"there is no data set {name!r}; {suggest(name, known)}")
    check_options(name, loader, options)
    return loader(path, **options)
