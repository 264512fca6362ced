"""What server and nodes say to each other: one order and one answer for each node and round.

A message holds one ``ArrayRecord`` and one ``ConfigRecord``. The arrays of an order are
``weights``, ``buffers`` and ``sent-NAME``; those of an answer are the same for each client, under
the prefix ``CLIENT/``, with ``state-NAME`` for what a method sends up besides its weights. All
else is JSON, compressed. Nothing is pickled.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from specgrad_fl.errors import RunError

PROTOCOL = 2
ARRAYS, FACTS = "arrays", "facts"
# facts of a round are a few kilobytes; more than this is no message of ours
MOST_FACTS = 2**26
Arrays = dict[str, NDArray[Any]]


class WireError(RunError):
    """A message that cannot be used, and why."""


def pack(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> RecordDict:
    """The content of a message.

    >>> facts, arrays = unpack(pack({"round": 1}, {"weights": np.ones(2, np.float32)}))
    >>> facts, arrays["weights"].tolist()
    ({'round': 1}, [1.0, 1.0])
    """
    named = {name: Array(np.ascontiguousarray(value)) for name, value in (arrays or {}).items()}
    squeezed = zlib.compress(json.dumps(facts).encode())
    return RecordDict({ARRAYS: ArrayRecord(named), FACTS: ConfigRecord({"json": squeezed})})


def unpack(content: RecordDict) -> tuple[dict[str, Any], Arrays]:
    """The inverse of :func:`pack`; a :class:`WireError` for anything else."""
    if set(content) != {ARRAYS, FACTS}:
        raise WireError(f"a record of another application, with the parts {sorted(content)}")
    arrays, facts = content[ARRAYS], content[FACTS]
    if not isinstance(arrays, ArrayRecord) or not isinstance(facts, ConfigRecord):
        raise WireError("a record whose parts are of the wrong kind")
    return _facts(facts), {name: _numpy(name, array) for name, array in arrays.items()}


def _facts(record: ConfigRecord) -> dict[str, Any]:
    squeezed = record.get("json")
    if not isinstance(squeezed, bytes):
        raise WireError("a record without facts")
    try:
        facts = json.loads(zlib.decompressobj().decompress(squeezed, MOST_FACTS))
    except (zlib.error, ValueError) as error:
        raise WireError(f"a record whose facts cannot be read: {error}") from error
    if not isinstance(facts, dict):
        raise WireError("a record whose facts are no table")
    return facts


def _numpy(name: str, array: Array) -> NDArray[Any]:
    try:
        return array.numpy()
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise WireError(f"an array {name!r} that cannot be read: {error}") from error


def present(vectors: Mapping[str, Sized]) -> dict[str, Any]:
    """Those that are sent: what a model has none of is left out, for every array costs requests.

    >>> present({"weights": [1.0], "buffers": []})
    {'weights': [1.0]}
    """
    return {name: vector for name, vector in vectors.items() if len(vector)}


def size(content: RecordDict) -> int:
    """Bytes of the arrays and facts of a message.

    >>> 4000 < size(pack({}, {"weights": np.zeros(1000, np.float32)})) < 4200
    True
    """
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
        elif isinstance(record, ConfigRecord):
            total += sum(len(value) for value in record.values() if isinstance(value, bytes))
    return total


def settings(order: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the run that an order belongs to."""
    blueprint = order.get("blueprint")
    found = blueprint.get("config") if isinstance(blueprint, dict) else None
    if not isinstance(found, dict):
        raise WireError("an order without the settings of its run")
    return found


def check_order(order: Mapping[str, Any]) -> None:
    """Refuse an order whose parts have another form: clients and rounds become names of files."""
    try:
        numbers = [order["round"], *order["clients"], *order["sizes"]]
        for table in (order["newest"], order["stored"]):
            numbers += [*map(int, table), *table.values()]
        fit = isinstance(order["blueprint"], dict) and isinstance(order["run"], str)
        fit = fit and isinstance(order["lr"], (int, float))
        fit = fit and all(type(number) is int and number >= 0 for number in numbers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"an order that cannot be understood: {error!r}") from error
    if not fit:
        raise WireError("an order whose parts are of the wrong kind")


def check_array(arrays: Arrays, name: str, like: NDArray[Any], what: str) -> NDArray[Any]:
    """The array ``name`` if it is finite and has the shape and dtype of ``like``."""
    if name not in arrays:
        raise WireError(f"it sent no {what}")
    found = arrays[name]
    if found.shape != like.shape or found.dtype != like.dtype:
        raise WireError(
            f"its {what} are {found.dtype} of shape {found.shape}; expected {like.dtype} of shape "
            f"{like.shape}"
        )
    if not np.isfinite(found).all():
        raise WireError(f"its {what} are not finite")
    return found
