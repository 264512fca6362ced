"""Instructions that the 32 threads of a warp execute together."""

from __future__ import annotations

import numpy as np

from triton_tools.ptx.parse import PtxError

LANES = np.arange(32)
GROUP = LANES // 4
MEMBER = LANES % 4


def shuffle(values: np.ndarray, mode: str, operand: np.ndarray) -> np.ndarray:
    """Each lane takes another lane's value; whole warps, no clamping segment."""
    lanes = np.arange(len(values))
    own = lanes % 32
    source = own ^ operand if mode == "bfly" else operand & 31
    return values[lanes - own + source]


def multiply_tf32(a: list, b: list, c: list) -> list[np.ndarray]:
    """``mma.m16n8k8``: tf32 products, float32 accumulators."""

    def tf32(bits: np.ndarray) -> np.ndarray:
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)

    warps = len(a[0]) // 32
    left = np.empty((warps, 16, 8))
    right = np.empty((warps, 8, 8))
    for part, (row, column) in enumerate(((0, 0), (8, 0), (0, 4), (8, 4))):
        left[:, GROUP + row, MEMBER + column] = tf32(a[part]).reshape(warps, 32)
    for part, row in enumerate((0, 4)):
        right[:, MEMBER + row, GROUP] = tf32(b[part]).reshape(warps, 32)
    places = [(GROUP + row, 2 * MEMBER + column) for row in (0, 8) for column in (0, 1)]
    product = left @ right
    return [
        (product[:, row, column].ravel() + c[part].view(np.float32)).astype(np.float32)
        for part, (row, column) in enumerate(places)
    ]


def multiply_f64(a: list, b: list, c: list) -> list[np.ndarray]:
    """``mma.m8n8k4`` in double precision."""
    warps = len(a[0]) // 32
    left = np.empty((warps, 8, 4))
    right = np.empty((warps, 4, 8))
    left[:, GROUP, MEMBER] = a[0].view(np.float64).reshape(warps, 32)
    right[:, MEMBER, GROUP] = b[0].view(np.float64).reshape(warps, 32)
    product = left @ right
    return [
        product[:, GROUP, 2 * MEMBER + column].ravel() + c[column].view(np.float64)
        for column in (0, 1)
    ]


def matrix_addresses(rows: np.ndarray, matrices: int) -> list[np.ndarray]:
    """``ldmatrix``: where each lane finds its word of each 8 x 8 matrix of halves."""
    by_warp = rows.reshape(-1, 32)
    return [(by_warp[:, 8 * matrix + GROUP] + 4 * MEMBER).ravel() for matrix in range(matrices)]


def transposed_addresses(rows: np.ndarray, matrices: int, half: int) -> list[np.ndarray]:
    """``ldmatrix.trans``: where each lane finds one half of its word, out of another row each."""
    by_warp = rows.reshape(-1, 32)
    return [
        (by_warp[:, 8 * matrix + 2 * MEMBER + half] + 2 * GROUP).ravel()
        for matrix in range(matrices)
    ]


def described_addresses(descriptors: np.ndarray, block: int) -> list[np.ndarray]:
    """Where each lane finds its two words of an 8 x 8 block of ``wgmma``'s second matrix.

    A descriptor holds, in units of 16 bytes, the start and the distance of groups of eight
    columns, and how many chunks of 16 bytes are exchanged with each other, so that columns
    below each other lie in different banks.
    """
    bits = descriptors.astype(np.uint64)
    start = ((bits & np.uint64(0x3FFF)) << np.uint64(4)).astype(np.int64)
    distance = (((bits >> np.uint64(32)) & np.uint64(0x3FFF)) << np.uint64(4)).astype(np.int64)
    mode = (bits >> np.uint64(62)).astype(np.int64)
    if (mode == 0).any() or ((bits >> np.uint64(49)) & np.uint64(7)).any():
        raise PtxError("a matrix in shared memory whose chunks are not exchanged")
    chunks = np.array([0, 8, 4, 2])[mode]
    lanes = np.arange(len(bits)) % 32
    column, row = lanes // 4, lanes % 4
    first = start + block * distance + column * chunks * 16 + row * 4
    return [place ^ (((place >> 7) & (chunks - 1)) << 4) for place in (first, first + 16)]
