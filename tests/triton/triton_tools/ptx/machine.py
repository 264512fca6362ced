"""Threads, registers, memory and control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triton_tools.ptx import arithmetic, warp
from triton_tools.ptx.arithmetic import TYPES
from triton_tools.ptx.parse import (
    Address,
    Instruction,
    Kernel,
    Label,
    Number,
    PtxError,
    Register,
    Vector,
    parse,
)

_STORAGE = {"pred": np.bool_, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}
_SHARED = "global_smem"


class Memory:
    """Byte-addressed memory in pieces; what is outside of them may not be touched."""

    def __init__(self, pieces: Sequence[tuple[int, np.ndarray]]) -> None:
        self.pieces = [(start, start + len(data), data) for start, data in pieces if len(data)]

    def _find(self, addresses: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        low, high = int(addresses.min()), int(addresses.max()) + size
        if (addresses % size).any():
            raise PtxError(f"misaligned access of {size} bytes")
        for start, end, data in self.pieces:
            if start <= low and high <= end:
                index = (addresses - start).astype(np.int64)
                return data, index[:, None] + np.arange(size)
        raise PtxError(f"access of {size} bytes at {low:#x}..{high:#x}, outside every tensor")

    def load(self, addresses: np.ndarray, kind: type, count: int) -> np.ndarray:
        """``[lanes, count]`` values of ``kind``."""
        size = np.dtype(kind).itemsize * count
        data, index = self._find(addresses.astype(np.int64), size)
        return np.ascontiguousarray(data[index]).view(kind)

    def store(self, addresses: np.ndarray, values: np.ndarray) -> None:
        """Values of shape ``[lanes, count]``."""
        size = values.dtype.itemsize * values.shape[1]
        data, index = self._find(addresses.astype(np.int64), size)
        data[index] = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), size)


def tensor_bytes(tensor: Tensor) -> tuple[int, np.ndarray]:
    """Address and bytes of a contiguous CPU tensor, writable in place."""
    flat = tensor.detach().flatten() if tensor.is_contiguous() else tensor.detach()
    if not flat.is_contiguous():
        raise PtxError("tensors must be contiguous; register the storage of a view")
    return tensor.data_ptr(), flat.view(torch.uint8).numpy()


class Program:
    """A compiled kernel that can be run over a grid."""

    def __init__(self, text: str, shared_bytes: int) -> None:
        self.kernel: Kernel = parse(text)
        self.shared_bytes = shared_bytes

    def run(self, grid: int, arguments: Sequence[Tensor], reachable: Sequence[Tensor]) -> None:
        """All programs, one after the other. ``reachable`` is what pointer tables lead to."""
        memory = Memory([tensor_bytes(tensor) for tensor in (*arguments, *reachable)])
        self.execute(grid, [tensor.data_ptr() for tensor in arguments], memory)

    def execute(self, grid: int, values: Sequence[int], memory: Memory) -> None:
        """All programs, with the bits of each parameter."""
        for index in range(grid):
            Machine(self.kernel, memory, self.shared_bytes, values, index).run()


class Machine:
    """One program: all its threads, lowest program counter first so that they meet again."""

    def __init__(
        self, kernel: Kernel, memory: Memory, shared_bytes: int, values: Sequence[int], index: int
    ) -> None:
        self.kernel = kernel
        self.threads = kernel.threads
        self.memory = memory
        # Uninitialised shared memory reads as NaN.
        self.shared = Memory([(0, np.full(shared_bytes, 0xFF, dtype=np.uint8))])
        self.parameters = dict(zip(kernel.parameters, values, strict=False))
        lanes = np.arange(self.threads, dtype=np.uint32)
        self.special = {"%tid.x": lanes, "%ctaid.x": np.full(self.threads, index, np.uint32)}
        self.registers: dict[str, np.ndarray] = {}
        self.counter = np.zeros(self.threads, dtype=np.int64)
        self.copies: list[list[tuple[np.ndarray, np.ndarray]]] = [[]]
        self.mask = np.ones(self.threads, dtype=bool)
        self.whole = True

    def run(self) -> None:
        """Until every thread has returned."""
        code, end = self.kernel.code, len(self.kernel.code)
        with np.errstate(all="ignore"):
            while True:
                position = int(self.counter.min())
                if position >= end:
                    return
                self.mask = self.counter == position
                self.whole = bool(self.mask.all())
                self.counter[self.mask] = position + 1
                self._step(code[position])

    def _step(self, instruction: Instruction) -> None:
        if instruction.guard:
            taken = self._storage(instruction.guard).astype(bool) ^ instruction.negated
            self.mask = self.mask & taken
            self.whole = bool(self.mask.all())
            if not self.mask.any():
                return
        handler = _HANDLERS.get(instruction.opcode[0])
        if handler is None:
            raise PtxError(f"unknown instruction: {instruction.text}")
        handler(self, instruction.opcode, instruction.operands)

    def _storage(self, name: str) -> np.ndarray:
        if name in self.special:
            return self.special[name]
        if name not in self.registers:
            raise PtxError(f"{name} is read before it is written")
        return self.registers[name]

    def read(self, operand: Any, kind: str) -> np.ndarray:
        """An operand's values as ``kind``, for all threads."""
        target = np.dtype(TYPES[kind])
        if isinstance(operand, Register):
            values = self._storage(operand.name)
            if values.dtype.itemsize != target.itemsize:
                raise PtxError(f"{operand.name} is not as wide as {kind}")
            return values.view(target)
        if isinstance(operand, Number):
            if kind == "pred":
                return np.full(self.threads, operand.bits != 0)
            width = target.itemsize * 8
            bits = np.array([operand.bits & ((1 << width) - 1)], dtype=f"u{target.itemsize}")
            return np.repeat(bits.view(target), self.threads)
        if isinstance(operand, Label) and operand.name == _SHARED:
            return np.zeros(self.threads, dtype=target)
        raise PtxError(f"operand {operand}")

    def write(self, operand: Any, values: np.ndarray) -> None:
        """Values for the threads that are at work; the others keep theirs."""
        if operand is None:
            return
        if not isinstance(operand, Register):
            raise PtxError(f"destination {operand}")
        declared = self.kernel.widths[operand.name.rstrip("0123456789")]
        storage = np.dtype(_STORAGE[declared])
        if values.dtype.itemsize != storage.itemsize:
            raise PtxError(f"{values.dtype} does not fit {operand.name}")
        bits = np.ascontiguousarray(values).view(storage)
        old = self.registers.get(operand.name)
        if self.whole or old is None:
            self.registers[operand.name] = bits.copy()
        else:
            self.registers[operand.name] = np.where(self.mask, bits, old)

    def address(self, operand: Address) -> np.ndarray:
        """Addresses of the threads at work."""
        if operand.base == _SHARED:
            base = np.zeros(self.threads, dtype=np.int64)
        else:
            base = self._storage(operand.base).astype(np.int64)
        return base[self.mask] + operand.offset

    def scatter(self, values: np.ndarray) -> np.ndarray:
        """Values of the threads at work, spread over all threads."""
        full = np.zeros(self.threads, dtype=values.dtype)
        full[self.mask] = values
        return full


def _require(condition: bool, opcode: tuple[str, ...]) -> None:
    if not condition:
        raise PtxError(f"unknown instruction: {'.'.join(opcode)}")


def _two_sources(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    if opcode[:2] in (("mul", "wide"),):
        kind = opcode[2]
        _require(kind in ("s32", "u32"), opcode)
        product = arithmetic.wide_multiply(*(machine.read(o, kind) for o in operands[1:]))
        machine.write(operands[0], product)
        return
    found = arithmetic.binary(opcode)
    _require(found is not None and found[1] in TYPES, opcode)
    function, kind = found
    second = "u32" if opcode[0] in ("shl", "shr") else kind
    result = function(machine.read(operands[1], kind), machine.read(operands[2], second))
    machine.write(operands[0], result.astype(TYPES[kind]))


def _one_source(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    function = arithmetic.UNARY.get(opcode[:-1])
    _require(function is not None and opcode[-1] in TYPES, opcode)
    machine.write(operands[0], function(machine.read(operands[1], opcode[-1])))


def _multiply_add(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    if opcode[:2] == ("mad", "wide"):
        kind = opcode[2]
        _require(kind in ("s32", "u32"), opcode)
        product = arithmetic.wide_multiply(*(machine.read(o, kind) for o in operands[1:3]))
        total = product + machine.read(operands[3], {"s32": "s64", "u32": "u64"}[kind])
    elif opcode[:2] == ("mad", "lo"):
        a, b, c = (machine.read(operand, opcode[2]) for operand in operands[1:])
        total = a * b + c
    else:
        _require(opcode[:2] == ("fma", "rn") and opcode[2:] in (("f32",), ("f64",)), opcode)
        total = arithmetic.fused(*(machine.read(operand, opcode[2]) for operand in operands[1:]))
    machine.write(operands[0], total)


def _bit_field(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _require(opcode[1:] in (("u32",), ("s32",)), opcode)
    a = machine.read(operands[1], opcode[1])
    position, length = (machine.read(operand, "u32") for operand in operands[2:])
    machine.write(operands[0], arithmetic.extract_bits(a, position, length))


def _compare(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _require(len(opcode) == 3 and opcode[1] in arithmetic.COMPARE, opcode)
    a, b = (machine.read(operand, opcode[2]) for operand in operands[1:])
    machine.write(operands[0], arithmetic.COMPARE[opcode[1]](a, b))


def _select(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _require(len(opcode) == 2 and opcode[1] in TYPES, opcode)
    a, b = (machine.read(operand, opcode[1]) for operand in operands[1:3])
    machine.write(operands[0], np.where(machine.read(operands[3], "pred"), a, b))


def _convert(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    pack = arithmetic.PACK.get(opcode[1:])
    if pack:
        upper, lower = (pack(machine.read(operand, "f32")) for operand in operands[1:])
        word = (upper.astype(np.uint32) << np.uint32(16)) | lower.astype(np.uint32)
        machine.write(operands[0], word)
        return
    _require(opcode[1:] in arithmetic.CONVERT, opcode)
    _, source, function = arithmetic.CONVERT[opcode[1:]]
    machine.write(operands[0], function(machine.read(operands[1], source)))


def _move(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _require(len(opcode) == 2 and opcode[1] in TYPES, opcode)
    target, source = operands
    kind = opcode[1]
    if isinstance(target, Vector):
        whole = machine.read(source, kind)
        parts = np.ascontiguousarray(whole).view(f"u{whole.itemsize // len(target.parts)}")
        for index, part in enumerate(target.parts):
            machine.write(part, parts[index :: len(target.parts)])
    elif isinstance(source, Vector):
        half = f"b{np.dtype(TYPES[kind]).itemsize * 8 // len(source.parts)}"
        parts = np.stack([machine.read(part, half) for part in source.parts], axis=1)
        machine.write(target, np.ascontiguousarray(parts).view(TYPES[kind]).ravel())
    else:
        machine.write(target, machine.read(source, kind))


def _space(machine: Machine, opcode: tuple[str, ...]) -> tuple[Memory, int, str]:
    """Memory, number of elements and type of a load or store."""
    _require(opcode[1] in ("global", "shared"), opcode)
    count = 1
    rest = opcode[2:]
    if rest[0] in ("v2", "v4"):
        count = int(rest[0][1])
        rest = rest[1:]
    _require(len(rest) == 1 and rest[0] in ("b16", "b32", "b64"), opcode)
    return (machine.memory if opcode[1] == "global" else machine.shared), count, rest[0]


def _load(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    target, source = operands
    if opcode[1:] in (("param", "b64"), ("param", "b32")):
        value = machine.parameters.get(source.base)
        if value is None:
            raise PtxError(f"parameter {source.base} was not given")
        machine.write(target, np.full(machine.threads, value, dtype=TYPES[opcode[2]]))
        return
    memory, count, kind = _space(machine, opcode)
    values = memory.load(machine.address(source), TYPES[kind], count)
    parts = target.parts if isinstance(target, Vector) else (target,)
    _require(len(parts) == count, opcode)
    for index, part in enumerate(parts):
        machine.write(part, machine.scatter(values[:, index]))


def _store(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    target, source = operands
    memory, count, kind = _space(machine, opcode)
    parts = source.parts if isinstance(source, Vector) else (source,)
    _require(len(parts) == count, opcode)
    values = np.stack([machine.read(part, kind)[machine.mask] for part in parts], axis=1)
    memory.store(machine.address(target), values)


def _copy(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    """Asynchronous copies land when they are waited for, and not before."""
    if opcode[2:] == ("commit_group",):
        machine.copies.append([])
    elif opcode[2:] == ("wait_group",):
        keep = operands[0].bits
        groups = machine.copies
        landed = groups[: max(len(groups) - 1 - keep, 0)]
        machine.copies = groups[len(landed) :]
        for addresses, values in (copy for group in landed for copy in group):
            machine.shared.store(addresses, values)
    else:
        _require(opcode[2:] == ("ca", "shared", "global") and len(operands) == 4, opcode)
        size = operands[2].bits
        wanted = machine.read(operands[3], "u32")[machine.mask]
        sources = machine.address(operands[1])
        if not np.isin(wanted, (0, size)).all():
            raise PtxError("a copy of part of its bytes")
        values = np.zeros((len(wanted), size), dtype=np.uint8)
        chosen = wanted > 0
        if chosen.any():
            values[chosen] = machine.memory.load(sources[chosen], np.uint8, size)
        machine.copies[-1].append((machine.address(operands[0]), values))


def _whole_warps(machine: Machine, opcode: tuple[str, ...]) -> None:
    if not machine.whole:
        raise PtxError(f"{'.'.join(opcode)} is reached by a part of the threads")


def _shuffle(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _whole_warps(machine, opcode)
    _require(
        opcode[1] == "sync" and opcode[2] in ("bfly", "idx") and opcode[3:] == ("b32",), opcode
    )
    target, source, lane, clamp, members = operands
    _require(clamp == Number(31) and members == Number(-1), opcode)
    values = machine.read(source, "b32")
    chosen = machine.read(lane, "u32").astype(np.int64)
    machine.write(target, warp.shuffle(values, opcode[2], chosen))


def _matrix_multiply(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _whole_warps(machine, opcode)
    known: dict[tuple[str, ...], tuple[str, Callable]] = {
        ("m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32"): ("b32", warp.multiply_tf32),
        ("m8n8k4", "row", "col", "f64", "f64", "f64", "f64"): ("b64", warp.multiply_f64),
    }
    _require(opcode[1:3] == ("sync", "aligned") and opcode[3:] in known, opcode)
    kind, multiply = known[opcode[3:]]
    a, b, c = ([machine.read(part, kind) for part in operand.parts] for operand in operands[1:])
    for part, values in zip(operands[0].parts, multiply(a, b, c), strict=True):
        machine.write(part, values)


def _load_matrix(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _whole_warps(machine, opcode)
    known = {"x1": 1, "x2": 2, "x4": 4}
    expected = ("ldmatrix", "sync", "aligned", "m8n8")
    _require(opcode[:4] == expected and opcode[4] in known, opcode)
    _require(opcode[5:] == ("shared", "b16"), opcode)
    rows = machine.address(operands[1])
    places = warp.matrix_addresses(rows, known[opcode[4]])
    for part, addresses in zip(operands[0].parts, places, strict=True):
        machine.write(part, machine.shared.load(addresses, np.uint32, 1)[:, 0])


def _barrier(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _require(opcode == ("bar", "sync") and operands == (Number(0),), opcode)
    _whole_warps(machine, opcode)


def _branch(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _require(opcode in (("bra",), ("bra", "uni")), opcode)
    machine.counter[machine.mask] = machine.kernel.labels[operands[0].name]


def _return(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _require(opcode == ("ret",), opcode)
    machine.counter[machine.mask] = len(machine.kernel.code)


_HANDLERS: dict[str, Callable[[Machine, tuple[str, ...], tuple], None]] = {
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr"),
        _two_sources,
    ),
    "neg": _one_source,
    "not": _one_source,
    "mad": _multiply_add,
    "fma": _multiply_add,
    "bfe": _bit_field,
    "setp": _compare,
    "selp": _select,
    "cvt": _convert,
    "mov": _move,
    "ld": _load,
    "st": _store,
    "cp": _copy,
    "shfl": _shuffle,
    "mma": _matrix_multiply,
    "ldmatrix": _load_matrix,
    "bar": _barrier,
    "bra": _branch,
    "ret": _return,
}
