"""Instructions that each thread executes for itself, on arrays of all threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triton_tools.ptx.parse import PtxError

TYPES = {
    "s16": np.int16,
    "u16": np.uint16,
    "b16": np.uint16,
    "s32": np.int32,
    "u32": np.uint32,
    "b32": np.uint32,
    "s64": np.int64,
    "u64": np.uint64,
    "b64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "pred": np.bool_,
}
_WIDER = {np.int32: np.int64, np.uint32: np.uint64, np.float32: np.float64}


def _divide(a, b):
    quotient = np.abs(a.astype(np.int64)) // np.maximum(np.abs(b.astype(np.int64)), 1)
    return (np.sign(a) * np.sign(b) * quotient).astype(a.dtype)


def _remainder(a, b):
    return (a - _divide(a, b) * b).astype(a.dtype)


def _fused(a, b, c):
    wide = np.float64 if a.dtype == np.float32 else np.longdouble
    return (a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(a.dtype)


def _shift(function):
    def shifted(a, b):
        amount = np.minimum(b.astype(np.uint64), a.itemsize * 8 - 1).astype(a.dtype)
        result = function(a, amount)
        over = b.astype(np.uint64) >= a.itemsize * 8
        return np.where(over & np.issubdtype(a.dtype, np.unsignedinteger), 0, result).astype(
            a.dtype
        )

    return shifted


BINARY: dict[tuple[str, ...], Callable] = {
    ("add",): np.add,
    ("sub",): np.subtract,
    ("mul",): np.multiply,
    ("mul", "lo"): np.multiply,
    ("mul", "hi"): lambda a, b: (wide_multiply(a, b) >> 32).astype(a.dtype),
    ("min",): np.minimum,
    ("max",): np.maximum,
    ("and",): np.bitwise_and,
    ("or",): np.bitwise_or,
    ("xor",): np.bitwise_xor,
    ("shl",): _shift(np.left_shift),
    ("shr",): _shift(np.right_shift),
    ("div",): _divide,
    ("rem",): _remainder,
    ("div", "rn"): np.divide,
    ("div", "full"): np.divide,
}
UNARY: dict[tuple[str, ...], Callable] = {
    ("abs",): np.abs,
    ("neg",): np.negative,
    ("not",): np.invert,
}
COMPARE: dict[str, Callable] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
_FLOATS = ("f32", "f64")
_ONLY_FLOAT = {("mul",), ("div", "rn"), ("div", "full")}
_ONLY_INTEGER = {
    ("mul", "lo"),
    ("mul", "hi"),
    ("div",),
    ("rem",),
    ("shl",),
    ("shr",),
    ("min",),
    ("max",),
}


def binary(opcode: tuple[str, ...]) -> tuple[Callable, str] | None:
    """Function and type of an instruction with two sources, ``None`` for another kind."""
    name, kind = opcode[:-1], opcode[-1]
    if name not in BINARY:
        return None
    if (name in _ONLY_FLOAT and kind not in _FLOATS) or (name in _ONLY_INTEGER and kind in _FLOATS):
        raise PtxError(f"opcode {'.'.join(opcode)}")
    return BINARY[name], kind


def wide_multiply(a, b):
    """Full product of two 32-bit integers."""
    wider = _WIDER[a.dtype.type]
    return a.astype(wider) * b.astype(wider)


def fused(a, b, c):
    """``a * b + c``, rounded once."""
    return _fused(a, b, c)


def extract_bits(a, position, length):
    """``bfe``: bits of ``a``, sign-extended for a signed type."""
    bits = a.astype(np.int64) & 0xFFFFFFFF
    field = (bits >> position.astype(np.int64)) & ((1 << length.astype(np.int64)) - 1)
    if a.dtype == np.int32:
        sign = 1 << (length.astype(np.int64) - 1)
        field = np.where(length > 0, (field ^ sign) - sign, 0)
    return field.astype(a.dtype)


def round_to_tf32(a):
    """``cvt.rna.tf32.f32``: to 10 bits of mantissa, ties away from zero."""
    bits = a.view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(a), rounded, bits).astype(np.uint32)


def bfloat16_bits(a):
    """The upper half of a float32, rounded to nearest even."""
    bits = a.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(a), 0x7FFF, rounded).astype(np.uint16)


def _to_integer(a):
    limits = np.iinfo(np.int32)
    return np.clip(np.nan_to_num(np.trunc(a.astype(np.float64))), limits.min, limits.max).astype(
        np.int32
    )


CONVERT: dict[tuple[str, ...], tuple[str, str, Callable]] = {
    ("s64", "s32"): ("s64", "s32", lambda a: a.astype(np.int64)),
    ("u64", "u32"): ("u64", "u32", lambda a: a.astype(np.uint64)),
    ("u32", "u64"): ("u32", "u64", lambda a: a.astype(np.uint32)),
    ("u16", "u32"): ("u16", "u32", lambda a: a.astype(np.uint16)),
    ("u32", "u16"): ("u32", "u16", lambda a: a.astype(np.uint32)),
    ("rn", "f32", "s32"): ("f32", "s32", lambda a: a.astype(np.float32)),
    ("rn", "f64", "s32"): ("f64", "s32", lambda a: a.astype(np.float64)),
    ("rzi", "s32", "f32"): ("s32", "f32", _to_integer),
    ("rna", "tf32", "f32"): ("b32", "f32", round_to_tf32),
    ("f64", "f32"): ("f64", "f32", lambda a: a.astype(np.float64)),
    ("rn", "f32", "f64"): ("f32", "f64", lambda a: a.astype(np.float32)),
    ("f32", "f16"): ("f32", "f16", lambda a: a.astype(np.float32)),
    ("f32", "bf16"): ("b32", "b16", lambda a: a.astype(np.uint32) << np.uint32(16)),
    ("rn", "bf16", "f32"): ("b16", "f32", bfloat16_bits),
    ("rn", "f16", "f32"): ("f16", "f32", lambda a: a.astype(np.float16)),
}
PACK: dict[tuple[str, ...], Callable] = {
    ("rn", "bf16x2", "f32"): bfloat16_bits,
    ("rn", "f16x2", "f32"): lambda a: a.astype(np.float16).view(np.uint16),
}
