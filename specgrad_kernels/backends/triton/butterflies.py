"""Transforms of powers of two on eight registers a lane, and what moves values between lanes.

A line of ``2**log`` complex values lies in ``2**(log - 3)`` neighbouring lanes: value
``lane + 2**(log - 3) * register``. A step of eight runs over the registers of every lane, a
turn follows, and an exchange brings the next three bits of the lane's number into the
registers. The way back does the same in reverse, so every value returns to its own lane.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROOT_OFFSETS = {64: 0, 512: 128, 32: 1152, 256: 1216, 2048: 1728}
"""Where the turns of a transform of each length begin among the coefficients: first those of lines
that are done in steps of eight alone."""
_ROOTS = tl.constexpr(ROOT_OFFSETS)


@triton.jit
def load8(place, step, mask, REAL: tl.constexpr = None):
    """Eight values, ``step`` apart, in the precision to compute with where that is named."""
    TYPE: tl.constexpr = place.dtype.element_ty if REAL is None else REAL
    return [tl.load(place + k * step, mask, 0.0).to(TYPE) for k in (0, 1, 2, 3, 4, 5, 6, 7)]


@triton.jit
def store8(place, step, x, mask):
    """Eight values, ``step`` apart."""
    for k in tl.static_range(8):
        tl.store(place + k * step, x[k], mask)


@triton.jit
def add8(x, value, factor):
    """``x + value * factor``, eight times with one factor."""
    return [x[k] + value[k] * factor for k in (0, 1, 2, 3, 4, 5, 6, 7)]


@triton.jit
def turn8(r, i, c, s, SIGN: tl.constexpr):
    """Each of eight values times its ``c + SIGN * i * s``."""
    real = [r[k] * c[k] - SIGN * i[k] * s[k] for k in (0, 1, 2, 3, 4, 5, 6, 7)]
    imaginary = [i[k] * c[k] + SIGN * r[k] * s[k] for k in (0, 1, 2, 3, 4, 5, 6, 7)]
    return real, imaginary


@triton.jit
def turn_all(r, i, c, s, SIGN: tl.constexpr):
    """Eight values, all turned by one angle."""
    return turn8(r, i, (c, c, c, c, c, c, c, c), (s, s, s, s, s, s, s, s), SIGN)


@triton.jit
def dft4(ar, ai, br, bi, cr, ci, dr, di, SIGN: tl.constexpr):
    """Four points; ``SIGN`` is -1 forward and 1 back."""
    even_r, even_i, odd_r, odd_i = ar + cr, ai + ci, ar - cr, ai - ci
    sum_r, sum_i, diff_r, diff_i = br + dr, bi + di, br - dr, bi - di
    side_r, side_i = -SIGN * diff_i, SIGN * diff_r
    low = (even_r + sum_r, even_i + sum_i, odd_r + side_r, odd_i + side_i)
    high = (even_r - sum_r, even_i - sum_i, odd_r - side_r, odd_i - side_i)
    return low + high


@triton.jit
def dft8(r, i, SIGN: tl.constexpr):
    """Eight points, over the registers."""
    HALF: tl.constexpr = 0.7071067811865476
    a0, b0, a1, b1, a2, b2, a3, b3 = dft4(r[0], i[0], r[2], i[2], r[4], i[4], r[6], i[6], SIGN)
    c0, d0, c1, d1, c2, d2, c3, d3 = dft4(r[1], i[1], r[3], i[3], r[5], i[5], r[7], i[7], SIGN)
    c1, d1 = HALF * (c1 - SIGN * d1), HALF * (d1 + SIGN * c1)
    c2, d2 = -SIGN * d2, SIGN * c2
    c3, d3 = -HALF * (c3 + SIGN * d3), HALF * (SIGN * c3 - d3)
    real = (a0 + c0, a1 + c1, a2 + c2, a3 + c3, a0 - c0, a1 - c1, a2 - c2, a3 - c3)
    imaginary = (b0 + d0, b1 + d1, b2 + d2, b3 + d3, b0 - d0, b1 - d1, b2 - d2, b3 - d3)
    return real, imaginary


@triton.jit
def dft4_twice(r, i, SIGN: tl.constexpr):
    """Four points over the even registers, four over the odd ones."""
    a0, b0, a2, b2, a4, b4, a6, b6 = dft4(r[0], i[0], r[2], i[2], r[4], i[4], r[6], i[6], SIGN)
    a1, b1, a3, b3, a5, b5, a7, b7 = dft4(r[1], i[1], r[3], i[3], r[5], i[5], r[7], i[7], SIGN)
    return (a0, a1, a2, a3, a4, a5, a6, a7), (b0, b1, b2, b3, b4, b5, b6, b7)


@triton.jit
def join8(x, LANES: tl.constexpr):
    """Eight registers as the last axis of one tensor."""
    low = tl.join(tl.join(x[0], x[4]), tl.join(x[2], x[6]))
    high = tl.join(tl.join(x[1], x[5]), tl.join(x[3], x[7]))
    return tl.reshape(tl.join(low, high), [LANES, 8])


@triton.jit
def split8(x, LANES: tl.constexpr):
    """The last axis of a tensor as eight registers."""
    even, odd = tl.split(tl.reshape(x, [LANES, 2, 2, 2]))
    x04, x26 = tl.split(even)
    x15, x37 = tl.split(odd)
    x0, x4 = tl.split(x04)
    x2, x6 = tl.split(x26)
    x1, x5 = tl.split(x15)
    x3, x7 = tl.split(x37)
    return (x0, x1, x2, x3, x4, x5, x6, x7)


@triton.jit
def exchange(r, i, LANES: tl.constexpr, BELOW: tl.constexpr, BITS: tl.constexpr):
    """Swap ``BITS`` bits of the lane, ``BELOW`` bits from its lowest, with as many upper bits of
    the register; its own inverse."""
    NEAR: tl.constexpr = 1 << BELOW
    SIDE: tl.constexpr = 1 << BITS
    both = tl.join(join8(r, LANES), join8(i, LANES))
    both = tl.reshape(both, [LANES // NEAR // SIDE, SIDE, NEAR, SIDE, 16 // SIDE])
    both = tl.reshape(tl.permute(both, (0, 3, 2, 1, 4)), [LANES, 8, 2])
    real, imaginary = tl.split(both)
    return split8(real, LANES), split8(imaginary, LANES)


@triton.jit
def radix_step(
    r, i, roots, lane, LOG: tl.constexpr, LANES: tl.constexpr, LOW: tl.constexpr, SIGN: tl.constexpr
):
    """The next step of a transform of ``2**LOG`` values, forward (-1), or undone (1).

    Each value is turned by the product of its lane and its register; then the next bits of the
    lane, from bit ``LOW`` on, become the register's.
    """
    LENGTH: tl.constexpr = 1 << LOG
    ROW: tl.constexpr = LENGTH // 8
    BITS: tl.constexpr = 2 if LOG == 5 else 3
    if SIGN == 1:
        r, i = dft4_twice(r, i, 1) if BITS == 2 else dft8(r, i, 1)
        r, i = exchange(r, i, LANES, LOW, BITS)
    place = roots + _ROOTS[LENGTH] + lane % ROW
    r, i = turn8(r, i, load8(place, ROW, True), load8(place + LENGTH, ROW, True), -SIGN)
    if SIGN == -1:
        r, i = exchange(r, i, LANES, LOW, BITS)
        r, i = dft4_twice(r, i, -1) if BITS == 2 else dft8(r, i, -1)
    return r, i


@triton.jit
def forward(r, i, roots, lane, log, LANES: tl.constexpr):
    """To the spectrum; ``numbers.bin_order`` says where its values lie."""
    r, i = dft8(r, i, -1)
    if LANES >= 256:  # noqa: SIM102 - one is known to the compiler, the other is not
        if log == 11:
            r, i = radix_step(r, i, roots, lane, 11, LANES, 5, -1)
    if log == 9:
        r, i = radix_step(r, i, roots, lane, 9, LANES, 3, -1)
    if (log == 8) | (log == 11):
        r, i = radix_step(r, i, roots, lane, 8, LANES, 2, -1)
    if (log == 6) | (log == 9):
        r, i = radix_step(r, i, roots, lane, 6, LANES, 0, -1)
    if (log == 5) | (log == 8) | (log == 11):
        r, i = radix_step(r, i, roots, lane, 5, LANES, 0, -1)
    return r, i


@triton.jit
def backward(r, i, roots, lane, log, LANES: tl.constexpr):
    """From the spectrum, unscaled; every step of ``forward`` undone."""
    if (log == 5) | (log == 8) | (log == 11):
        r, i = radix_step(r, i, roots, lane, 5, LANES, 0, 1)
    if (log == 6) | (log == 9):
        r, i = radix_step(r, i, roots, lane, 6, LANES, 0, 1)
    if (log == 8) | (log == 11):
        r, i = radix_step(r, i, roots, lane, 8, LANES, 2, 1)
    if log == 9:
        r, i = radix_step(r, i, roots, lane, 9, LANES, 3, 1)
    if LANES >= 256:  # noqa: SIM102 - one is known to the compiler, the other is not
        if log == 11:
            r, i = radix_step(r, i, roots, lane, 11, LANES, 5, 1)
    return dft8(r, i, 1)
