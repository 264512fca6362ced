"""TensorBoard event files, written without TensorBoard: scalars in checksummed records."""

from __future__ import annotations

import struct
from pathlib import Path

_POLYNOMIAL = 0x82F63B78
_VERSION = "brain.Event:2"


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    """A record of the file format: length, its checksum, data, their checksum."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(number: int, data: bytes) -> bytes:
    """A length-delimited protocol buffer field."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def scalar_event(wall_time: float, step: int, tag: str, value: float) -> bytes:
    """One scalar as an Event message: wall_time, step, summary { value { tag, simple_value } }."""
    entry = _message(1, tag.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", value)
    time_field = _varint(1 << 3 | 1) + struct.pack("<d", wall_time)
    step_field = _varint(2 << 3) + _varint(step)
    return time_field + step_field + _message(5, _message(1, entry))


def version_event(wall_time: float) -> bytes:
    """The first event of every file."""
    return _varint(1 << 3 | 1) + struct.pack("<d", wall_time) + _message(3, _VERSION.encode())


def file_name(started: float) -> str:
    """A name that TensorBoard recognises."""
    return f"events.out.tfevents.{int(started):010d}.specgrad"


def append_scalars(path: Path, wall_time: float, step: int, scalars: dict[str, float]) -> None:
    """Add scalars to an event file, which is begun if need be."""
    records = [scalar_event(wall_time, step, tag, value) for tag, value in scalars.items()]
    with open(path, "ab") as file:
        if file.tell() == 0:
            file.write(record(version_event(wall_time)))
        file.write(b"".join(map(record, records)))
