"""Kernel for short signals: every suppressed wave is formed and projected out."""

from __future__ import annotations

import triton
import triton.language as tl

from specgrad_kernels.backends.triton import fields
from specgrad_kernels.backends.triton.common import field, offset_of, root_of_unity, samples_of


@triton.jit
def project_waves(
    pointers,
    table,
    programs,
    workspace,
    ELEMENT: tl.constexpr,
    REAL: tl.constexpr,
    STRIDED: tl.constexpr,
    BINS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """One signal: coefficients of its ``cutoff`` lowest bins, then their waves subtracted."""
    signal = tl.load(programs + tl.program_id(0))
    d = field(table, signal, fields.LENGTH)
    cutoff = field(table, signal, fields.CUTOFF)
    samples = samples_of(pointers, table, signal, ELEMENT)
    cosines = workspace + field(table, signal, fields.WORK)
    sines = cosines + cutoff

    for low in range(0, cutoff, BINS):
        bin = low + tl.arange(0, BINS)
        even = tl.zeros([BINS], REAL)
        odd = tl.zeros([BINS], REAL)
        for start in range(0, d, SPAN):
            n = start + tl.arange(0, SPAN)
            value = tl.load(samples + offset_of(n, table, signal, STRIDED), n < d, 0.0).to(REAL)
            cosine, sine = root_of_unity((bin[:, None] * n[None, :]) % d, d, REAL)
            even += tl.sum(cosine * value[None, :], axis=1)
            odd += tl.sum(sine * value[None, :], axis=1)
        scale = tl.where(bin > 0, 2.0, 1.0).to(REAL) / d.to(REAL)
        tl.store(cosines + bin, even * scale, mask=bin < cutoff)
        tl.store(sines + bin, odd * scale, mask=bin < cutoff)
    # The coefficients were stored by some warps and are read by all.
    tl.debug_barrier()
    for start in range(0, d, SPAN):
        n = start + tl.arange(0, SPAN)
        total = tl.zeros([SPAN], REAL)
        for low in range(0, cutoff, BINS):
            bin = low + tl.arange(0, BINS)
            even = tl.load(cosines + bin, mask=bin < cutoff, other=0.0)
            odd = tl.load(sines + bin, mask=bin < cutoff, other=0.0)
            cosine, sine = root_of_unity((bin[:, None] * n[None, :]) % d, d, REAL)
            total += tl.sum(cosine * even[:, None] + sine * odd[:, None], axis=0)
        address = samples + offset_of(n, table, signal, STRIDED)
        value = tl.load(address, mask=n < d, other=0.0).to(REAL)
        tl.store(address, (value - total).to(ELEMENT), mask=n < d)
