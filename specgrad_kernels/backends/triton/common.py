"""Device functions that every kernel shares: table look-up, addresses, roots of unity."""

from __future__ import annotations

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields


@triton.jit
def field(table, signal, index: tl.constexpr):
    """One number of a signal's row; all but addresses and strides fit in 32 bits."""
    return tl.load(table + signal * fields.COUNT + index).to(tl.int32)


@triton.jit
def samples_of(pointers, table, signal, ELEMENT: tl.constexpr):
    """Address of the signal's first sample, in 64 bits: a stack may be larger than 2**31."""
    row = table + signal * fields.COUNT
    slot = tl.load(row + fields.SLOT)
    base = tl.load(row + fields.BASE)
    return tl.load(pointers + slot).to(tl.pointer_type(ELEMENT)) + base


@triton.jit
def offset_of(n, table, signal, STRIDED: tl.constexpr):
    """Elements from a signal's first sample to its sample ``n``, in logical order."""
    if STRIDED:
        row = table + signal * fields.COUNT
        size1 = field(table, signal, fields.SIZE1)
        size2 = field(table, signal, fields.SIZE2)
        size3 = field(table, signal, fields.SIZE3)
        upper3 = n // size3
        upper2 = upper3 // size2
        upper1 = upper2 // size1
        offset = (n - upper3 * size3).to(tl.int64) * tl.load(row + fields.STRIDE3)
        offset += (upper3 - upper2 * size2).to(tl.int64) * tl.load(row + fields.STRIDE2)
        offset += (upper2 - upper1 * size1).to(tl.int64) * tl.load(row + fields.STRIDE1)
        offset += upper1.to(tl.int64) * tl.load(row + fields.STRIDE0)
    else:
        offset = n
    return offset


@triton.jit
def root_of_unity(numerator, denominator, REAL: tl.constexpr):
    """Cosine and sine of ``2 pi numerator / denominator`` for ``0 <= numerator < denominator``.

    The quarter turn is taken off in integers, so the polynomials see at most an eighth of a
    turn, exactly reduced; no table is read and no library routine brings local memory along.
    """
    share = 4.0 / denominator.to(tl.float32)
    quarter = (numerator.to(tl.float32) * share + 0.5).to(tl.int32)
    rest = 4 * numerator - quarter * denominator
    scale = tl.full([], 1.5707963267948966, REAL) / denominator.to(REAL)
    x = rest.to(REAL) * scale
    square = x * x
    if tl.float64 == REAL:
        sine = 1.0 - square / 342 * (1.0 - square / 420)
        sine = 1.0 - square / 156 * (1.0 - square / 210 * (1.0 - square / 272 * sine))
        sine = 1.0 - square / 42 * (1.0 - square / 72 * (1.0 - square / 110 * sine))
        cosine = 1.0 - square / 306 * (1.0 - square / 380)
        cosine = 1.0 - square / 132 * (1.0 - square / 182 * (1.0 - square / 240 * cosine))
        cosine = 1.0 - square / 30 * (1.0 - square / 56 * (1.0 - square / 90 * cosine))
    else:
        sine = 1.0 - square * (1 / 42) * (1.0 - square * (1 / 72) * (1.0 - square * (1 / 110)))
        cosine = 1.0 - square * (1 / 30) * (1.0 - square * (1 / 56) * (1.0 - square * (1 / 90)))
    sine = x * (1.0 - square * (1 / 6) * (1.0 - square * (1 / 20) * sine))
    cosine = 1.0 - square * 0.5 * (1.0 - square * (1 / 12) * cosine)
    swapped = (quarter & 1) == 1
    first = tl.where(swapped, -sine, cosine)
    second = tl.where(swapped, cosine, sine)
    turned = (quarter & 2) == 2
    return tl.where(turned, -first, first), tl.where(turned, -second, second)


@triton.jit
def multiply(left, right, total, PRECISION: tl.constexpr, REAL: tl.constexpr):
    """``total + left @ right`` in the arithmetic asked for."""
    return tl.dot(left, right, total, input_precision=PRECISION, out_dtype=REAL)
