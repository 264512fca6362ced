"""One record for each round: ``metrics.jsonl``, the same as CSV, and TensorBoard events."""

from __future__ import annotations

import csv
import ctypes
import functools
import hashlib
import io
import json
import re
import struct
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from specgrad_fl import storage
from specgrad_fl.config import flat

Record = dict[str, Any]
MEASURED = ("time", "seconds", "filter_share", "memory_mib")
CHECK = "check"
# what every record has; the rest depends on the round
NEEDED = {
    "round": int,
    "train_loss": float,
    "seconds": dict,
    "filter_share": float,
    "memory_mib": dict,
    "bytes_up": int,
    "bytes_down": int,
}


def read(path: Path, most: int | None = None) -> list[Record]:
    """Read the rounds in ``metrics.jsonl``, from 1 on; a torn last line, left by a crash, is none.

    most: the rounds that count; what was written after them is not looked at
    """
    if not path.is_file():
        return []
    found: list[Record] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if len(found) == most:
            break
        if not line:
            continue
        try:
            record = json.loads(line)
            check = record.pop(CHECK, None)
            whole = all(isinstance(record[name], kind) for name, kind in NEEDED.items())
            whole = (
                whole and check in (None, line_check(record)) and record["round"] == len(found) + 1
            )
        except (ValueError, TypeError, AttributeError, KeyError):
            whole = False
        if whole:
            found.append(record)
        elif number < len(lines):
            raise storage.spoiled(f"line {number} of {path} is damaged")
    return found


def line_check(record: Record) -> str:
    """Compute a short checksum of a record, which tells a changed byte."""
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()[:8]


def line(record: Record) -> str:
    """A record as it is written, with what tells a changed byte."""
    return json.dumps({**record, CHECK: line_check(record)}) + "\n"


def essence(record: Record) -> Record:
    """A record without what a clock or the operating system measured."""
    return {name: value for name, value in record.items() if name not in MEASURED}


class Records(list[Record]):
    """The rounds of a run in progress, in memory and in its folder; written by :meth:`rewind`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._digest = hashlib.sha256()
        self._columns: list[str] = []  # of the CSV file
        self._in_csv = 0

    @property
    def digest(self) -> str:
        """SHA-256 of all rounds so far, without their times: the same whenever they are played."""
        return self._digest.hexdigest()

    def check(self, rounds: int, digest: str = "") -> None:
        """Take the first rounds from the file; ``digest`` is what they had when it was stored."""
        kept = [record for record in read(self.path, rounds) if record["round"] <= rounds]
        if len(kept) != rounds:
            raise storage.spoiled(
                f"{self.path} has {len(kept)} of the {rounds} rounds that the checkpoint has seen"
            )
        self._digest = hashlib.sha256()
        self.clear()
        for record in kept:
            self._add(record)
        if digest and self.digest != digest:
            raise storage.changed(self.path)

    def _add(self, record: Record) -> None:
        super().append(record)
        self._digest.update(json.dumps(essence(record)).encode())

    def rewind(self, rounds: int, digest: str = "") -> None:
        """Forget what was written after the stored round, and what a crash left half written."""
        self.check(rounds, digest)
        storage.write_text(self.path, "".join(map(line, self)))
        with storage.replacing(self._events_path()) as temporary:
            for record in self:
                _add_events(temporary, record)

    def append(self, record: Record) -> None:
        """The next round, on disk before this returns."""
        self._add(record)
        try:
            storage.append_text(self.path, line(record), sync=True)
            _add_events(self._events_path(), record)
        except OSError as error:
            raise storage.cannot_write(self.path, error) from error

    def _events_path(self) -> Path:
        found = sorted(self.path.parent.glob("events.out.tfevents.*.specgrad"))
        return found[0] if found else self.path.parent / file_name(time.time())

    def write_csv(self) -> None:
        """All rounds as a table; nested numbers get dotted names.

        New rounds are added to the file, which is written whole at first and for a new column.
        """
        path, new = (
            self.path.with_suffix(".csv"),
            [flattened(each) for each in self[self._in_csv :]],
        )
        if self._columns and all(row.keys() <= set(self._columns) for row in new):
            storage.append_text(path, csv_text(new, self._columns))
        else:
            rows = [flattened(each) for each in self]
            self._columns = columns_of(rows)
            storage.write_text(path, csv_text(rows))
        self._in_csv = len(self)


def columns_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Every name that occurs, in the order in which they do."""
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_text(rows: Sequence[dict[str, Any]], without_header: Sequence[str] = ()) -> str:
    """A table with a column for every name that occurs, or lines under columns that are there."""
    text = io.StringIO()
    names = list(without_header or columns_of(rows))
    writer = csv.writer(text, lineterminator="\n")
    if not without_header:
        writer.writerow(map(_no_formula, names))
    writer.writerows([_no_formula(row.get(name, "")) for name in names] for row in rows)
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    """A cell that no spreadsheet computes; numbers with their signs stay what they are.

    >>> [_no_formula(cell) for cell in ("=1+1", "-0.5 [-1, 0]", "fedavg", 3)]
    ["'=1+1", '-0.5 [-1, 0]', 'fedavg', 3]
    """
    computed = isinstance(value, str) and re.match(r"[=@\t\r]|[+-](?![\d.]|$)", value)
    return f"'{value}" if computed else value


def flattened(record: Record) -> dict[str, Any]:
    """Nested tables as dotted names, lists left out.

    >>> flattened({"round": 1, "seconds": {"filter": 0.5}, "clients": [1, 2]})
    {'round': 1, 'seconds.filter': 0.5}
    """
    return {name: value for name, value in flat(record).items() if not isinstance(value, list)}


def _add_events(path: Path, record: Record) -> None:
    """The numbers of a record that are worth a curve."""
    worth = flattened({k: v for k, v in record.items() if k not in ("round", "time")})
    scalars = {name.replace(".", "/"): float(value) for name, value in worth.items()}
    append_scalars(path, record["time"], record["round"], scalars)


def file_name(started: float) -> str:
    """A name that TensorBoard recognises."""
    return f"events.out.tfevents.{int(started):010d}.specgrad"


def append_scalars(path: Path, wall_time: float, step: int, scalars: dict[str, float]) -> None:
    """Add scalars to an event file, which is begun if need be.

    Event messages have wall_time, step, summary { value { tag, simple_value } }; the first one of
    a file has its version instead.
    """
    now = _varint(1 << 3 | 1) + struct.pack("<d", wall_time)
    number = _varint(2 << 3) + _varint(step)
    with open(path, "ab") as file:
        if file.tell() == 0:
            file.write(framed(now + _message(3, b"brain.Event:2")))
        for tag, value in scalars.items():
            # as ctypes rounds it, what is beyond float32 becomes infinite
            number_bytes = struct.pack("<f", ctypes.c_float(value).value)
            entry = _message(1, tag.encode()) + _varint(2 << 3 | 5) + number_bytes
            file.write(framed(now + number + _message(5, _message(1, entry))))


def framed(data: bytes) -> bytes:
    """A record of the file format: length, its checksum, data, their checksum."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _remainder((crc ^ byte) & 0xFF) ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@functools.cache
def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _message(number: int, data: bytes) -> bytes:
    """A length-delimited protocol buffer field."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data
