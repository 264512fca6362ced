"""Message format between server and nodes: one order and one answer per node and round.

A message holds one ``ArrayRecord`` and one ``ConfigRecord``. The arrays of an order are
``weights``, ``buffers`` and ``sent-NAME``; those of an answer are the same for each client, under
the prefix ``CLIENT/``, with ``state-NAME`` for what a method sends up besides its weights. All
else is JSON, compressed. Nothing is pickled.
"""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from specgrad_fl.building import Blueprint
from specgrad_fl.errors import RunError, printable
from specgrad_fl.methods import Method
from specgrad_fl.vectors import SharedVectors

ARRAYS, FACTS = "arrays", "facts"
# facts are 200 bytes for each client; more than this is no message of ours
MOST_FACTS = 2**24
Arrays = dict[str, NDArray[Any]]


class WireError(RunError):
    """A message that cannot be used, and why, in words that a terminal can show."""

    def __init__(self, why: object) -> None:
        super().__init__(printable(why))


class NotFinite(WireError):
    """A client's loss or weights that no longer are numbers, as when its training diverges."""


def pack(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> RecordDict:
    """The content of a message."""
    named = {name: Array(np.ascontiguousarray(value)) for name, value in (arrays or {}).items()}
    squeezed = zlib.compress(json.dumps(facts).encode())
    return RecordDict({ARRAYS: ArrayRecord(named), FACTS: ConfigRecord({"json": squeezed})})


def unpack(content: RecordDict) -> tuple[dict[str, Any], Arrays]:
    """The inverse of :func:`pack`; a :class:`WireError` for anything else."""
    if set(content) != {ARRAYS, FACTS}:
        raise WireError(f"a record of another application, with the parts {sorted(content)}")
    arrays, record = content[ARRAYS], content[FACTS]
    if not isinstance(arrays, ArrayRecord) or not isinstance(record, ConfigRecord):
        raise WireError("a record whose parts are of the wrong kind")
    try:
        squeezed: Any = record["json"]
        facts = json.loads(zlib.decompressobj().decompress(squeezed, MOST_FACTS))
        if not isinstance(facts, dict):
            raise TypeError("they are no table")
    except Exception as error:  # deep nesting and numbers of any size raise errors of many kinds
        raise WireError(f"a record whose facts cannot be read: {error}") from error
    try:
        return facts, {name: _decoded(array) for name, array in arrays.items()}
    except Exception as error:
        raise WireError(f"an array that cannot be read: {error}") from error


def _decoded(array: Array) -> NDArray[Any]:
    """Decode an npy array; nothing is allocated for what its header promises and does not send."""
    if array.stype != "numpy.ndarray":
        raise ValueError(f"it is serialised as {array.stype!r}")
    file = io.BytesIO(array.data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("it is no npy file of version 1.0")
    shape, by_column, dtype = np.lib.format.read_array_header_1_0(file)
    sent = len(array.data) - file.tell()
    if dtype.kind not in "biuf" or min(shape, default=0) < 0:
        raise ValueError(f"it holds {dtype} of shape {shape}")
    if sent != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{sent} bytes are not {dtype} of shape {shape}")
    flat = np.frombuffer(array.data, dtype, offset=file.tell()).copy()
    return flat.reshape(shape, order="F" if by_column else "C")


def outgoing(board: SharedVectors) -> dict[str, Tensor]:
    """Vectors that the server sends; empty ones are left out, for every array costs requests."""
    sent = {"weights": board.weights, "buffers": board.buffers}
    sent |= {f"sent-{name}": vector for name, vector in board.sent.items()}
    return {name: vector for name, vector in sent.items() if len(vector)}


def returned(
    method: Method, weights: Tensor, buffers: Tensor, states: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Vectors that a client sends back, with those of its states that the method sends up."""
    sent = {"weights": weights, "buffers": buffers}
    sent |= {f"state-{name}": states[name] for name in method.client_vectors[: method.up - 1]}
    return {name: vector for name, vector in sent.items() if len(vector)}


def size(content: RecordDict) -> int:
    """Bytes of the arrays and facts of a message."""
    arrays, facts = content.array_records.values(), content.config_records.values()
    parts = [array.data for record in arrays for array in record.values()]
    parts += [value for record in facts for value in record.values() if isinstance(value, bytes)]
    return sum(map(len, parts))


def blueprint(order: Mapping[str, Any]) -> Blueprint:
    """The settings of the run that an order belongs to, and what its model takes."""
    try:
        return Blueprint.parse(order["blueprint"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"an order with a blueprint of another form: {error!r}") from error


def check_order(order: Mapping[str, Any]) -> None:
    """Refuse an order whose parts have another form: clients and rounds become names of files."""
    try:
        numbers = [order["round"], *order["clients"], *order["sizes"]]
        for table in (order["newest"], order["stored"], order["previous"]):
            numbers += [*map(int, table), *table.values()]
        fit = isinstance(order["run"], str) and isinstance(order["lr"], (int, float))
        fit = fit and all(type(number) is int and number >= 0 for number in numbers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"an order that cannot be understood: {error!r}") from error
    if not fit:
        raise WireError("an order whose parts are of the wrong kind")


def taken(arrays: Arrays, name: str, like: Tensor, what: str) -> Tensor:
    """The array ``name`` if it is finite and has the shape and dtype of ``like``."""
    if name not in arrays:
        raise WireError(f"it sent no {what}")
    found, expected = arrays[name], like.numpy()
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise WireError(
            f"its {what} are {found.dtype} of shape {found.shape}; expected {expected.dtype} of "
            f"shape {expected.shape}"
        )
    if not np.isfinite(found).all():
        raise NotFinite(f"its {what} are not finite")
    return torch.from_numpy(found)
