"""Threads, registers, memory and control flow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

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

    def _find(
        self, addresses: np.ndarray, size: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Which lanes are in a piece, its bytes, and which of them each of these lanes accesses."""
        if (addresses % size).any():
            raise PtxError(f"misaligned access of {size} bytes")
        left = np.ones(len(addresses), np.bool_)
        for start, end, data in self.pieces:
            lanes = left & (addresses >= start) & (addresses <= end - size)
            if lanes.any():
                left &= ~lanes
                yield lanes, data, (addresses[lanes] - start)[:, None] + np.arange(size)
            if not left.any():
                return
        low, high = int(addresses[left].min()), int(addresses[left].max()) + size
        raise PtxError(f"access of {size} bytes at {low:#x}..{high:#x}, outside every tensor")

    def load(self, addresses: np.ndarray, kind: type, count: int) -> np.ndarray:
        """``[lanes, count]`` values of ``kind``."""
        size = np.dtype(kind).itemsize * count
        values = np.empty((len(addresses), size), np.uint8)
        for lanes, data, index in self._find(addresses.astype(np.int64), size):
            values[lanes] = data[index]
        return values.view(kind)

    def store(self, addresses: np.ndarray, values: np.ndarray) -> None:
        """Values of shape ``[lanes, count]``."""
        size = values.dtype.itemsize * values.shape[1]
        stored = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), size)
        for lanes, data, index in self._find(addresses.astype(np.int64), size):
            data[index] = stored[lanes]


def tensor_bytes(tensor: Tensor) -> tuple[int, np.ndarray]:
    """Address and bytes of a contiguous CPU tensor, writable in place."""
    flat = tensor.detach().flatten() if tensor.is_contiguous() else tensor.detach()
    if not flat.is_contiguous():
        raise PtxError("tensors must be contiguous; register the storage of a view")
    return tensor.data_ptr(), flat.view(torch.uint8).numpy()


class PtxKernel:
    """A compiled kernel that can be run over a grid."""

    def __init__(self, text: str, shared_bytes: int) -> None:
        self.text = text
        self.kernel: Kernel = parse(text)
        self.shared_bytes = shared_bytes

    def run(self, grid: int, arguments: Sequence[Tensor], reachable: Sequence[Tensor]) -> None:
        """All programs, one after the other. ``reachable`` is what pointer tables lead to."""
        memory = Memory([tensor_bytes(tensor) for tensor in (*arguments, *reachable)])
        self.execute(grid, [tensor.data_ptr() for tensor in arguments], memory)

    def execute(
        self, grid: int, values: Sequence[int], memory: Memory, watch: Watch | None = None
    ) -> None:
        """All programs, with the bits of each parameter."""
        for index in range(grid):
            Machine(self.kernel, memory, self.shared_memory(), values, index, watch=watch).run()

    def shared_memory(self) -> Memory:
        """Memory that the threads of one program share; it reads as NaN before it is written."""
        return Memory([(0, np.full(self.shared_bytes, 0xFF, dtype=np.uint8))])


class Watch(Protocol):
    """Somebody who is told what the threads of a program do to memory."""

    def touch(
        self, space: str, threads: np.ndarray, addresses: np.ndarray, data: np.ndarray | int
    ) -> None:
        """Bytes ``[lanes, size]`` are stored, or a number of bytes is loaded."""

    def barrier(self) -> None:
        """All threads of the program have met."""


class Machine:
    """One program, or one warp of it: lowest program counter first, so that threads meet again."""

    def __init__(
        self,
        kernel: Kernel,
        memory: Memory,
        shared: Memory,
        values: Sequence[int],
        index: int,
        warp: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.kernel = kernel
        self.threads = kernel.threads if warp is None else 32
        self.memory = memory
        self.shared = shared
        self.watch = watch
        self.alone = warp is not None
        self.waiting = False
        self.parameters = dict(zip(kernel.parameters, values, strict=False))
        lanes = np.arange(self.threads, dtype=np.uint32) + np.uint32(32 * (warp or 0))
        self.special = {"%tid.x": lanes, "%ctaid.x": np.full(self.threads, index, np.uint32)}
        self.registers: dict[str, np.ndarray] = {}
        self.counter = np.zeros(self.threads, dtype=np.int64)
        self.copies: list[list[tuple[np.ndarray, np.ndarray]]] = [[]]
        self.mask = np.ones(self.threads, dtype=bool)
        self.whole = True

    @property
    def ended(self) -> bool:
        """True once every thread has returned."""
        return int(self.counter.min()) >= len(self.kernel.code)

    def run(self) -> None:
        """Until every thread has returned, or a warp that runs alone waits for the others."""
        code, end = self.kernel.code, len(self.kernel.code)
        self.waiting = False
        with np.errstate(all="ignore"):
            while True:
                position = int(self.counter.min())
                if position >= end or self.waiting:
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

    def tell(self, memory: Memory, addresses: np.ndarray, data: np.ndarray | int) -> None:
        """Tell the watch what the threads at work do."""
        if self.watch is not None:
            threads = self.special["%tid.x"][self.mask]
            if isinstance(data, np.ndarray):
                data = np.ascontiguousarray(data).view(np.uint8).reshape(len(threads), -1)
            space = "shared" if memory is self.shared else "global"
            self.watch.touch(space, threads, addresses, data)

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
    addresses = machine.address(source)
    values = memory.load(addresses, TYPES[kind], count)
    machine.tell(memory, addresses, count * np.dtype(TYPES[kind]).itemsize)
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
    addresses = machine.address(target)
    machine.tell(memory, addresses, values)
    memory.store(addresses, values)


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
        machine.tell(machine.memory, sources, size)
        targets = machine.address(operands[0])
        machine.tell(machine.shared, targets, values)
        machine.copies[-1].append((targets, values))


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
    _require(opcode[5:] in (("shared", "b16"), ("trans", "shared", "b16")), opcode)
    rows, count = machine.address(operands[1]), known[opcode[4]]
    if opcode[5] == "trans":
        halves = [warp.transposed_addresses(rows, count, half) for half in (0, 1)]
        kind, shift = np.uint16, 16
    else:
        halves = [warp.matrix_addresses(rows, count)]
        kind, shift = np.uint32, 0
    for part, places in zip(operands[0].parts, zip(*halves, strict=True), strict=True):
        word = np.zeros(machine.threads, np.uint32)
        for half, addresses in enumerate(places):
            machine.tell(machine.shared, addresses, np.dtype(kind).itemsize)
            values = machine.shared.load(addresses, kind, 1)[:, 0].astype(np.uint32)
            word |= values << np.uint32(half * shift)
        machine.write(part, word)


def _store_matrix(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _whole_warps(machine, opcode)
    known = {"x1": 1, "x2": 2, "x4": 4}
    _require(opcode[:4] == ("stmatrix", "sync", "aligned", "m8n8") and opcode[4] in known, opcode)
    _require(opcode[5:] == ("shared", "b16"), opcode)
    places = warp.matrix_addresses(machine.address(operands[0]), known[opcode[4]])
    for part, addresses in zip(operands[1].parts, places, strict=True):
        values = machine.read(part, "b32")[:, None]
        machine.tell(machine.shared, addresses, values)
        machine.shared.store(addresses, values)


def _multiply_in_groups(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    """``wgmma``: four warps multiply rows in registers by a matrix in shared memory, at once here.

    On a GPU it runs on beside the threads until it is waited for.
    """
    _whole_warps(machine, opcode)
    if opcode in _WARP_GROUP_ORDER:
        return
    _require(opcode[1:4] == ("mma_async", "sync", "aligned"), opcode)
    _require(opcode[5:] == ("f32", "tf32", "tf32"), opcode)
    shape = re.fullmatch(r"m64n(\d+)k8", opcode[4])
    _require(shape is not None and operands[4:] == (Number(1), Number(1)), opcode)
    columns = int(shape[1])
    totals, rows, descriptor, kept = operands[:4]
    _require(len(totals.parts) == columns // 2 and len(rows.parts) == 4, opcode)
    a = [machine.read(part, "b32") for part in rows.parts]
    keep = machine.read(kept, "pred")
    matrix = machine.read(descriptor, "b64")
    for block in range(columns // 8):
        parts = totals.parts[4 * block : 4 * block + 4]
        # what a total holds matters only where it is kept
        old = [machine.read(p, "b32") if keep.any() else np.zeros_like(a[0]) for p in parts]
        old = [np.where(keep, values, np.uint32(0)) for values in old]
        b = []
        for addresses in warp.described_addresses(matrix, block):
            machine.tell(machine.shared, addresses, 4)
            b.append(machine.shared.load(addresses, np.uint32, 1)[:, 0])
        for part, values in zip(parts, warp.multiply_tf32(a, b, old), strict=True):
            machine.write(part, values)


_WARP_GROUP_ORDER = (
    ("wgmma", "fence", "sync", "aligned"),
    ("wgmma", "commit_group", "sync", "aligned"),
    ("wgmma", "wait_group", "sync", "aligned"),
)


def _fence(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _require(opcode == ("fence", "proxy", "async", "shared"), opcode)


def _permute_bytes(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _require(opcode == ("prmt", "b32"), opcode)
    low, high, chosen = (machine.read(operand, "u32").astype(np.uint64) for operand in operands[1:])
    if (chosen & np.uint64(0x8888)).any():
        raise PtxError("a byte's sign is asked for")
    both = low | (high << np.uint64(32))
    word = np.zeros_like(both)
    for place in range(4):
        source = (chosen >> np.uint64(4 * place)) & np.uint64(7)
        byte = (both >> (np.uint64(8) * source)) & np.uint64(255)
        word |= byte << np.uint64(8 * place)
    machine.write(operands[0], word.astype(np.uint32))


def _barrier(machine: Machine, opcode: tuple[str, ...], operands: tuple) -> None:
    _whole_warps(machine, opcode)
    if opcode == ("bar", "warp", "sync"):
        _require(operands == (Number(-1),), opcode)
        return
    _require(opcode == ("bar", "sync") and operands == (Number(0),), opcode)
    if machine.alone:
        machine.waiting = True
    elif machine.watch is not None:
        machine.watch.barrier()


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
    "abs": _one_source,
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
    "stmatrix": _store_matrix,
    "wgmma": _multiply_in_groups,
    "fence": _fence,
    "prmt": _permute_bytes,
    "bra": _branch,
    "ret": _return,
}
