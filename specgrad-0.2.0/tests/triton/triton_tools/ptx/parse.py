"""From PTX text to instructions."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass


class PtxError(Exception):
    """Something that this interpreter does not know or does not allow."""


@dataclass(frozen=True)
class Register:
    """A register, special ones included."""

    name: str


@dataclass(frozen=True)
class Number:
    """An immediate: its bits as an integer of any sign, or a float constant's bits."""

    bits: int


@dataclass(frozen=True)
class Address:
    """``[base + offset]``; the base is a register, a parameter or the shared array."""

    base: str
    offset: int


@dataclass(frozen=True)
class Vector:
    """``{a, b, ...}``, with ``None`` for a part that is thrown away."""

    parts: tuple


@dataclass(frozen=True)
class Label:
    """Where a branch goes."""

    name: str


@dataclass(frozen=True)
class Instruction:
    """One instruction: guard, opcode split at its dots, operands."""

    guard: str | None
    negated: bool
    opcode: tuple[str, ...]
    operands: tuple
    text: str


@dataclass
class Kernel:
    """A parsed entry function."""

    parameters: list[str]
    parameter_kinds: list[str]
    threads: int
    widths: dict[str, str]
    code: list[Instruction]
    labels: dict[str, int]


_STATEMENT = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*?);$")
_REGISTER = re.compile(r"\.reg\s+\.(\w+)\s+(%[a-z]+)<\d+>;")


def _operand(text: str):
    text = text.strip()
    if text == "_":
        return None
    if text.startswith("{"):
        return Vector(tuple(_operand(part) for part in _split(text[1:-1])))
    if text.startswith("["):
        base, _, offset = text[1:-1].replace(" ", "").partition("+")
        return Address(base, int(offset or "0", 0))
    if text.startswith("%"):
        return Register(text)
    if text.startswith("0f"):
        return Number(int(text[2:], 16))
    if text.startswith("0d"):
        return Number(struct.unpack(">Q", bytes.fromhex(text[2:]))[0])
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", text):
        return Number(int(text.rstrip("U"), 0))
    if re.fullmatch(r"[$\w]+", text):
        return Label(text)
    raise PtxError(f"operand {text!r}")


def _split(text: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "{[") - (character in "}]")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current] if current.strip() else parts


def parse(text: str) -> Kernel:
    """The one entry function of a PTX module."""
    rest = text.partition(".visible .entry")[2]
    header, _, rest = rest.partition("{")
    body = rest[: rest.index("\n}")]
    threads = re.search(r"\.reqntid (\d+)", header)
    if threads is None:
        raise PtxError("the kernel does not say how many threads it takes")
    declared = re.findall(r"\.param \.[a-z](\d+)\s.*?(\w+_param_\d+)", header)
    names, kinds = [name for _, name in declared], [f"b{width}" for width, _ in declared]
    kernel = Kernel(names, kinds, int(threads[1]), {}, [], {})
    for raw in body.splitlines():
        line = raw.split("//")[0].strip()
        if not line:
            continue
        registers = _REGISTER.match(line)
        if registers:
            kernel.widths[registers[2]] = registers[1]
        elif re.fullmatch(r"[$\w]+:", line):
            kernel.labels[line[:-1]] = len(kernel.code)
        elif not line.startswith("."):
            kernel.code.append(_instruction(line))
    return kernel


def _instruction(line: str) -> Instruction:
    found = _STATEMENT.match(line)
    if found is None:
        raise PtxError(f"statement {line!r}")
    negated, guard, opcode, operands = found.groups()
    return Instruction(
        guard,
        negated == "!",
        # the block's own shared memory, by its long name
        tuple(opcode.replace("shared::cta", "shared").split(".")),
        tuple(_operand(part) for part in _split(operands)),
        line,
    )
