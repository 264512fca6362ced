"""Design of low-band removal, with its error: windows, gains, grids, error bounds.

The one design that every backend takes its numbers from, in float64. A signal of
``d = hop * cells`` samples is seen as ``cells``; a window of ``hop * width`` taps carries it to
that coarse grid and back, where the band ``|k| < cutoff`` is a circulant. On the frequencies
``k + i * cells`` that share a coarse bin this computes ``u u^T`` instead of the exact
``e0 e0^T``, where ``u`` holds the window's response at those frequencies over the one at ``k``.
With ``a`` for the norm of the entries beside the first, the difference has the norm
``a^2 / 2 + a * sqrt(1 + a^2 / 4)``: no gradient, whatever its spectrum, can do worse.

>>> taps = window_taps(hop=8, width=6, oversampling=2.5)
>>> alias_norm(taps, hop=8, band_edge=920 / 36864) < 5e-7
True
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import attrgetter

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]

STRATEGIES = ("auto", "dense", "band", "full")

EPSILON = {False: 2.0**-23, True: 2.0**-52}
"""Spacing of the numbers a filter computes with, by double precision."""
ALIAS_TOLERANCE = {False: 2e-7, True: 5e-15}
"""Aliasing that a window may leave, as an operator norm, by double precision: no more than
rounding, so that large waves of the band come out as well as they do of a whole transform."""
LARGEST_AMPLIFICATION = 8
"""Windows for a small oversampling are so steep that undoing them enlarges rounding."""
SMALLEST_OVERSAMPLING = 1.15
LARGEST_HOP = 64
_NARROWEST_FOR_DOUBLES = 12
_SQUARINGS = 6
_MOST_TAPS = 200
"""Largest window that is searched for: beyond it the search takes longer than it saves."""

# Pieces of the band for each lobe of a window, and terms of the Taylor series within a piece:
# what the series leaves out is below 1e-17 of the window's sum.
_PIECES = 64
_TERMS = 8
_BINS_IN_CACHE = 1 << 14


# ---- Windows ---------------------------------------------------------------------------------


def _kaiser_bessel(hop: int, width: int, oversampling: float) -> Array:
    steep = (width / oversampling * (oversampling - 0.5)) ** 2 - 0.8
    beta = math.pi * math.sqrt(max(steep, 0.1))
    count = hop * width
    position = (2 * np.arange(count) + 1 - count) / count
    taps: Array = np.i0(beta * np.sqrt(1 - position**2)) / np.i0(beta)
    return taps


def _product(subscripts: str, *arrays: Array) -> Array:
    """A product that no BLAS computes, whose last bits would depend on its threads."""
    product: Array = np.einsum(subscripts, *arrays, optimize=False)
    return product


def _largest_ratio(signal: Array, noise: Array) -> Array:
    """The vector ``x`` for which ``|signal x| / |noise x|`` is largest.

    Reflections instead of normal equations: ratios of 1e15 are theirs. A little noise in every
    direction keeps those finite that have none.
    """
    count = noise.shape[1]
    size = np.sqrt(np.square(noise).sum())
    rows = np.concatenate([noise, 5e-17 * size * np.eye(count)])
    for k in range(count):
        mirror = rows[k:, k].copy()
        mirror[0] += np.copysign(np.sqrt(np.square(mirror).sum()), mirror[0])
        mirror /= np.sqrt(np.square(mirror).sum())
        rows[k:, k:] -= 2 * np.multiply.outer(mirror, _product("r,rn", mirror, rows[k:, k:]))
    whitened = signal.copy()  # becomes the signal of vectors whose noise is 1
    for k in range(count):
        whitened[:, k] = (whitened[:, k] - _product("pj,j", whitened[:, :k], rows[:k, k])) / rows[
            k, k
        ]
    powers = _product("pm,pn->mn", whitened, whitened)
    for _ in range(_SQUARINGS):  # every column becomes the vector that grows fastest
        powers /= np.abs(powers).max()
        powers = _product("mk,kn->mn", powers, powers)
    found = powers.sum(axis=1)
    found /= np.sqrt(np.square(found).sum())
    for k in reversed(range(count)):
        found[k] = (found[k] - _product("j,j", rows[k, k + 1 : count], found[k + 1 :])) / rows[k, k]
    return found


@lru_cache(maxsize=256)
def _least_aliasing_window(hop: int, width: int, twentieths: int) -> Array:
    """Symmetric window whose images leak least into the band, relative to it.

    Least squares over frequencies of the band, weighted anew where most leaks. A window only has
    to be quiet at the images of the band, not between them, which saves a cell or two of a
    Kaiser-Bessel window.
    A gradient's mean can outweigh all the rest, so its leaks count ten times; not in windows for
    float64, which are at the limit of arithmetic and would leak more of everything else.
    """
    count, points = hop * width, 2 * width + 1
    edge = 10 / (twentieths * hop)
    # denser at the edge
    band = edge * np.sin(np.pi / 2 * np.maximum(np.arange(points) - 0.5, 0) / (points - 1))
    frequencies = (band + np.arange(hop)[:, None] / hop).ravel()
    half = np.arange((count + 1) // 2) - (count - 1) / 2
    responses = np.where(half == 0, 1, 2) * np.cos(2 * np.pi * np.outer(frequencies, half))
    main, images = responses[:points], responses[points:].reshape(hop - 1, points, -1)
    weight, taps = np.ones(points), np.ones(len(half))
    for _ in range(3):
        weight[0] = (10 if width < _NARROWEST_FOR_DOUBLES else 1) * weight[1:].max()
        leaks = (weight[:, None] * images).reshape(-1, len(half))
        taps = _largest_ratio(weight[1:, None] * main[1:], leaks)
        leak = np.sqrt((_product("hpn,n", images, taps) ** 2).sum(axis=0))
        leak /= np.abs(_product("pn,n", main, taps))
        weight *= np.sqrt(leak / leak[1:].max())
    taps = taps / taps[-1]
    return np.concatenate([taps, taps[: count // 2][::-1]])


def window_taps(hop: int, width: int, oversampling: float) -> Array:
    """Window of ``width`` cells of ``hop`` samples, symmetric, ``[hop * width]``.

    oversampling: coarse cells over the ``2 * cutoff`` that the band needs at least.

    >>> taps = window_taps(4, 6, 2.0)
    >>> len(taps), bool(np.allclose(taps, taps[::-1]))
    (24, True)
    """
    # on a grid hardly finer than the band the images leave no room, and rounding decides
    if 1 < hop <= _MOST_TAPS // width and oversampling >= 1.5:
        return _least_aliasing_window(hop, width, math.floor(20 * oversampling))
    return _kaiser_bessel(hop, width, oversampling)


def _offsets(taps: Array) -> Array:
    """Distance of each tap from the window's centre, in samples."""
    return np.arange(len(taps), dtype=np.float64) - (len(taps) - 1) / 2


def window_response(taps: Array, frequencies: Array) -> Array:
    """Spectrum of a symmetric window about its centre, at ``frequencies`` in cycles a sample."""
    return _product("fn,n", np.cos(2 * np.pi * np.outer(frequencies, _offsets(taps))), taps)


def _pieces(taps: Array, band_edge: float, pieces_a_lobe: int) -> tuple[Array, float]:
    """Centres of short pieces of the band, and how far a piece reaches to both sides."""
    pieces = max(1, math.ceil(band_edge * len(taps) * pieces_a_lobe))
    reach = band_edge / (2 * pieces)
    return np.asarray((2 * np.arange(pieces) + 1) * reach, dtype=np.float64), reach


def _series(taps: Array, reach: float, terms: int) -> Array:
    """Contribution of each tap to the response's Taylor series, at the end of a piece."""
    order = np.arange(terms)[:, None]
    factorials = np.cumprod(np.maximum(order, 1), axis=0, dtype=np.float64)
    series: Array = taps * (2 * np.pi * reach * _offsets(taps)) ** order / factorials
    return series


def band_response(taps: Array, d: int, count: int) -> Array:
    """The response at bins ``0 .. count - 1`` of ``d`` samples, by Taylor series of short pieces.

    >>> taps = window_taps(4, 6, 2.0)
    >>> bool(np.allclose(band_response(taps, 960, 50), window_response(taps, np.arange(50) / 960)))
    True
    """
    centres, reach = _pieces(taps, count / d, _PIECES)
    angles = 2 * np.pi * np.outer(centres, _offsets(taps))
    derivatives = (np.cos(angles), -np.sin(angles), -np.cos(angles), np.sin(angles))
    by_tap = _series(taps, reach, _TERMS)
    at_centres = [_product("pn,n", derivatives[t % 4], by_tap[t]) for t in range(_TERMS)]
    response = np.zeros(count)
    for first in range(0, count, _BINS_IN_CACHE):
        part = response[first : first + _BINS_IN_CACHE]
        frequencies = np.arange(first, first + len(part)) / d
        piece = np.minimum((frequencies / (2 * reach)).astype(np.int64), len(centres) - 1)
        distance = (frequencies - centres[piece]) / reach
        for term in reversed(at_centres):
            part *= distance
            part += term[piece]
    return response


def alias_norm(
    taps: Array, hop: int, band_edge: float, pieces_a_lobe: int = _PIECES, terms: int = _TERMS
) -> float:
    """Operator norm of what the window leaves wrong below ``band_edge`` cycles a sample.

    An upper bound over every frequency of the band, a few per cent above the exact maximum: in
    the middle of short pieces the responses and their derivatives are computed, and within a
    piece no response can leave its Taylor series. With one term, the norm at a few frequencies.
    """
    centres, reach = _pieces(taps, band_edge, pieces_a_lobe)
    phases = np.exp(-2j * np.pi * np.outer(centres, _offsets(taps)))
    series = _series(taps, reach, terms)
    # a transform over the samples of a cell yields the response at all images of a frequency
    by_sample = phases.reshape(len(centres), -1, hop), series.reshape(terms, -1, hop)
    sizes = np.abs(np.fft.fft(_product("pch,tch->hpt", *by_sample), axis=0))
    highest = sizes[1:].sum(axis=2)
    lowest = sizes[0, :, 0] - sizes[0, :, 1:].sum(axis=1)
    if np.any(lowest <= 0):
        return math.inf
    beside = np.sqrt((highest**2).sum(axis=0)) / lowest
    return float(np.max(beside**2 / 2 + beside * np.sqrt(1 + beside**2 / 4)))


def amplification(taps: Array, band_edge: float) -> float:
    """Factor by which undoing the window at the band's edge enlarges rounding errors."""
    middle, edge = window_response(taps, np.array([0.0, band_edge]))
    return float(middle / edge) if edge > 0 else math.inf


def window_gains(taps: Array, hop: int, d: int, removed: Array) -> Array:
    """Gains of bins ``0 .. cutoff - 1`` of the coarse grid, for spread, circulant
    and transposed spread to yield ``removed`` times the signal's own bins.

    removed: share of each bin that is taken out; ones for ``fft``. The factor ``1 / cells`` of
        an unnormalised transform there and back is part of the gains.
    """
    response = band_response(taps, d, len(removed))
    gains: Array = removed * hop / (response**2 * (d // hop))
    return gains


# ---- Rounding --------------------------------------------------------------------------------


def rounding(double: bool, enlarged: float = 1.0) -> float:
    """Rounding of a filter, relative to the gradient: ``3 + enlarged`` units.

    Errors that follow each other add up like a random walk. The factors are at least twice what
    white noise, constants and waves of every frequency showed against long double.
    """
    return (3 + enlarged) * EPSILON[double]


def transform_units(size: int) -> float:
    """Rounding error of the passes of a transform there and back; a large prime adds long sums."""
    largest = _large_prime(size)
    return 0.5 * math.log2(max(size, 2)) + (0.5 * math.sqrt(largest) if largest else 0)


def average_rounding(double: bool, radius: int, box: bool) -> float:
    """Rounding error of a weighted sum of neighbours up to ``radius`` away; moving averages are
    pairwise sums."""
    return rounding(double, 1 if box else 1 + 0.25 * math.sqrt(radius))


def equation_rounding(double: bool, d: int, terms: int = 0) -> float:
    """Rounding error of the equations in plain PyTorch: transforms of ``d`` samples, or sums of
    ``terms``, in the worst case one after the other."""
    return rounding(double, 4 + (terms / 2 if terms else math.log2(max(d, 2))))


def stored_rounding(dtype: torch.dtype, norm: float = 1.0) -> float:
    """Rounding error of a result stored in half precision, by a filter of norm ``norm``.

    It holds where results are normal numbers of the dtype: below them (6e-5 in float16) the
    digits end at a fixed place.
    """
    return norm * torch.finfo(dtype).eps / 2 if dtype.itemsize < 4 else 0.0


# ---- Grids -----------------------------------------------------------------------------------

LARGEST_PRIME = 1024
"""Largest radix of a transform: a pass adds up as many numbers for each that it yields."""
LARGEST_PADDED = 1 << 26
"""Numbers of a grid that is padded to save time; its table takes eight times their memory."""
_LONGEST_TRANSFORM = 4096
_PASS_COST = {2: 7.0, 3: 9.0, 4: 10.0, 5: 13.0, 6: 12.5, 8: 15.0}
"""Vector operations of a pass for each element, memory included; 6 + 2.5 * radix for others."""


def _prime_factors(n: int) -> Counter[int]:
    found: Counter[int] = Counter()
    prime = 2
    while n > 1:
        prime = prime if prime * prime <= n else n
        while n % prime == 0:
            found[prime], n = found[prime] + 1, n // prime
        prime += 1
    return found


def _large_prime(n: int) -> int:
    """The largest prime factor if passes for it would be long sums, else 0."""
    largest = max(_prime_factors(n), default=1)
    return largest if largest > 31 else 0


def transform_passes(n: int) -> list[int]:
    """Radices of the passes of a transform of length ``n``: few, and 4 last where there is one.

    >>> transform_passes(720), transform_passes(77)
    ([5, 6, 6, 4], [7, 11])
    """
    count = _prime_factors(n)
    twos, threes = count.pop(2, 0), count.pop(3, 0)
    sixes = min(twos, threes)
    if twos - sixes == 1 and sixes:
        sixes -= 1  # 3 * 4 is cheaper than 6 * 2
    left = twos - sixes
    eights = int(left % 2 and left > 1)
    threes_left, fours = threes - sixes, (left - 3 * eights) // 2
    small = {8: eights, 6: sixes, 3: threes_left, 2: int(left == 1), 4: fours}
    return [*count.elements(), *Counter(small).elements()]


@lru_cache(maxsize=4096)
def transform_cost(n: int) -> float:
    """Vector operations of a transform of length ``n`` for each element; infinite for a prime
    factor above 1024."""
    if _large_prime(n) > LARGEST_PRIME:
        return math.inf
    return sum(_PASS_COST.get(radix, 6 + 2.5 * radix) for radix in transform_passes(n))


@dataclass(frozen=True)
class TransformGrid:
    """A real circulant of ``rows * columns``: column transforms, twiddles, row transforms."""

    rows: int = 0
    columns: int = 0
    cost: float = math.inf

    @property
    def size(self) -> int:
        """Length of the circulant."""
        return self.rows * self.columns


_cost = attrgetter("cost")


def _crowding(elements: int) -> float:
    """Slowdown of passes over so many vectors, against the first cache."""
    return 1.0 if elements <= 576 else 1.2 if elements <= 1152 else 2.0


def choose_grid(size: int, lanes: int) -> TransformGrid:
    """The cheapest grid for vectors of ``lanes``; of infinite cost where no transform fits.

    >>> choose_grid(4608, 8).size, choose_grid(1031, 8).cost
    (4608, inf)
    """
    best = TransformGrid()
    if transform_cost(size) == math.inf:
        return best
    limit = np.arange(1, min(size, _LONGEST_TRANSFORM) + 1)
    for rows in limit[size % limit == 0].tolist():
        columns = size // rows
        tiles, groups = -(-columns // (2 * lanes)), -(-(rows // 2 + 1) // lanes)
        # rows that are not whole tiles are copied
        pitch = 2 * lanes * tiles
        down = rows * (2 * transform_cost(rows) + (0 if pitch == columns else 16))
        along = columns * 2 * transform_cost(columns) + 38 * pitch + 100
        cost = tiles * down * _crowding(rows) + groups * along * _crowding(columns)
        if columns > _LONGEST_TRANSFORM:
            cost *= 2
        if cost < best.cost:
            best = TransformGrid(rows, columns, cost)
    return best


# ---- The choice for vectors of a CPU ---------------------------------------------------------

LARGEST_DENSE_BASIS = 1 << 24
"""Dense bases of more numbers are refused: they would outgrow the gradients."""


@dataclass(frozen=True)
class LowBand:
    """Design the removal of ``removed`` of the first bins of ``d`` samples; all others are kept.

    strategy: ``identity``; ``dense``, a basis of waves; ``band``, a window and a coarse grid;
        ``full``, the whole spectrum; ``padded``, the same on a longer grid.
    error_bound: relative to the gradient's norm, for every gradient.
    """

    d: int
    removed: Array = field(repr=False, compare=False)
    strategy: str = "identity"
    hop: int = 1
    width: int = 0
    taps: Array = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    grid: TransformGrid = TransformGrid(1, 1, 0.0)
    error_bound: float = 0.0
    cost: float = math.inf

    @property
    def cutoff(self) -> int:
        """Bins of which something is removed."""
        return len(self.removed)

    @property
    def cells(self) -> int:
        """Length of the coarse signal."""
        return self.d // self.hop

    @cached_property
    def gains(self) -> Array:
        """Eigenvalues of the circulant for its first bins, with the transforms' ``1 / size``.

        ``band`` yields the low band, to be subtracted, and later bins have gain 0; ``full`` and
        ``padded`` yield the filtered signal, and later bins have the last gain. Of ``dense`` they
        are what is removed.
        """
        if self.strategy == "band":
            gains, cells = window_gains(self.taps, self.hop, self.d, self.removed), self.cells
            padded = self.grid.size > cells
            return _padded_gains(cells, cells * gains, self.grid.size) if padded else gains
        if self.strategy == "full":
            return np.append(1 - self.removed, 1.0) / self.grid.size
        if self.strategy == "padded":
            return 1 / self.grid.size - _padded_gains(self.d, self.removed, self.grid.size)
        return self.removed


def _low_band_response(d: int, removed: Array) -> Array:
    """Impulse response of the low band, ``[d]``; ``d`` has a large prime factor.

    >>> spectrum = np.fft.rfft(_low_band_response(16 * 2027, np.array([1.0, 0.5])))
    >>> bool(np.allclose(spectrum[:3], [1, 0.5, 0])), len(spectrum)
    (True, 16217)
    """
    prime = max(_prime_factors(d))
    rest = d // prime
    if d <= 1 << 14 or rest == 1:
        # in float64, a transform of a short prime length errs by up to four times what is promised
        spectrum = np.zeros(d // 2 + 1, np.longdouble if d <= 1 << 14 else np.float64)
        spectrum[: len(removed)] = removed
        return np.fft.irfft(spectrum, n=d)
    whole = np.zeros(d)
    whole[: len(removed)] = removed
    whole[d - len(removed) + 1 :] = removed[:0:-1]
    columns = np.empty((rest // 2 + 1, prime), np.complex128)
    angles = np.arange(prime) * (2j * np.pi / d)
    # so few transforms of the prime length at a time that they stay in the caches
    for part in np.array_split(np.arange(len(columns)), max(1, columns.size >> 16)):
        twiddles = np.exp(np.multiply.outer(part, angles))
        columns[part] = np.fft.ifft(whole.reshape(prime, rest).T[part], axis=1) * twiddles
    response: Array = np.fft.irfft(columns, n=rest, axis=0).ravel()
    return response


def _padded_gains(d: int, removed: Array, size: int) -> Array:
    """Spectrum of the low band's impulse response, laid out on ``size >= 2 * d - 1`` samples."""
    response = _low_band_response(d, removed)
    kernel = np.zeros(size)
    kernel[:d] = response
    kernel[size - d + 1 :] = response[1:]
    gains: Array = np.fft.rfft(kernel).real / size
    return gains


def largest_factor(removed: Array) -> float:
    """The largest factor of a bin, removed or kept: errors grow with it."""
    return float(max(1.0, np.max(removed, initial=0.0), 1 - np.min(removed, initial=0.0)))


def _dense(d: int, removed: Array, double: bool, lanes: int) -> LowBand:
    waves = 2 * len(removed) - 1
    vectors = waves * -(-d // lanes)
    # A basis that outgrows the first caches is read from slower memory, twice; a mean needs none.
    outgrown = vectors * lanes * (8 if double else 4) / (1 << 18) if waves > 1 else 0.0
    cost = 2.0 * vectors * (1 + min(outgrown, 4.0)) + 50
    # waves are subtracted one after the other: where an impulse stands out, each may round its
    # sample the same way, by half a unit
    bound = largest_factor(removed) * rounding(double, 2 + 0.5 * waves)
    return LowBand(d, removed, "dense", error_bound=bound, cost=cost)


def _least_width(cells: int, cutoff: int, double: bool) -> int:
    """Below it no window meets the tolerance; 0 where none can.

    Aliasing falls like exp(-pi * width * sqrt(1 - 1 / oversampling)): just below that.
    """
    oversampling = cells / (2 * cutoff)
    if oversampling < SMALLEST_OVERSAMPLING:
        return 0
    decay = math.pi * math.sqrt(1 - 1 / oversampling)
    return max(4, int(-math.log(ALIAS_TOLERANCE[double]) / decay) - 2)


@lru_cache(maxsize=1024)
def narrowest_window(d: int, cutoff: int, hop: int, double: bool) -> tuple[int, float, float]:
    """Width of the narrowest window that meets the tolerance with this hop, or 0; its aliasing
    and its amplification.

    >>> narrowest_window(36864, 921, 8, False)[0]
    7
    """
    cells, band_edge = d // hop, (cutoff - 1) / d
    oversampling = cells / (2 * cutoff)
    first = 0 if d % hop else _least_width(cells, cutoff, double)
    for width in range(first, min(first + 9, cells) if first else 0):
        taps = window_taps(hop, width, oversampling)
        enlarged = amplification(taps, band_edge)
        if enlarged > LARGEST_AMPLIFICATION:
            break  # wider ones are steeper
        if alias_norm(taps, hop, band_edge, 8, 1) > ALIAS_TOLERANCE[double]:
            continue  # refused by a few frequencies: the others need not be looked at
        alias = alias_norm(taps, hop, band_edge)
        if alias <= ALIAS_TOLERANCE[double]:
            return width, alias, enlarged
    return 0, math.inf, math.inf


def _band_cost(d: int, hop: int, width: int, lanes: int) -> float:
    if not width:
        return math.inf
    spread = d // hop * (-(-hop * width // lanes) + 4.0)
    interpolate = -(-d // lanes) * (width + max(lanes // hop, 1) + 2.0)
    return spread + interpolate + _smooth_grid(d // hop, lanes).cost + 200


def _band(d: int, removed: Array, hop: int, double: bool, lanes: int) -> LowBand:
    cutoff, cells = len(removed), d // hop
    width, alias, enlarged = narrowest_window(d, cutoff, hop, double)
    if not width:
        return LowBand(d, removed)
    taps = window_taps(hop, width, cells / (2 * cutoff))
    grid = _smooth_grid(cells, lanes)
    # the norm is a sum in float64; against long double, 0.3 units were missing at most
    alias += EPSILON[True]
    if grid.size > cells or _large_prime(cells):
        enlarged += transform_units(grid.size)
    bound = largest_factor(removed) * (alias + rounding(double, enlarged))
    cost = _band_cost(d, hop, width, lanes)
    return LowBand(d, removed, "band", hop, width, taps, grid, bound, cost)


def _best_band(d: int, removed: Array, double: bool, lanes: int, limit: float) -> LowBand:
    """The cheapest below ``limit``. Windows are long to design: only those that can be it."""
    hops = [1 << power for power in range(1, LARGEST_HOP.bit_length()) if d % (1 << power) == 0]
    widths = (_least_width(d // hop, len(removed), double) for hop in hops)
    least = {hop: _band_cost(d, hop, width, lanes) for hop, width in zip(hops, widths, strict=True)}
    best = LowBand(d, removed, cost=limit)
    for hop in sorted(hops, key=least.__getitem__):
        if least[hop] < best.cost:
            best = min(best, _band(d, removed, hop, double, lanes), key=_cost)
    return best


def average_cost(d: int, radius: int, box: bool, lanes: int) -> float:
    """Vector operations that subtract a local average from ``d`` samples."""
    return -(-d // lanes) * (36 if box else 2.6 * radius + 2) + 200


def _padded_grids(least: int, lanes: int) -> list[TransformGrid]:
    """Grids of at least so many numbers, a power of two times powers of 3 and 5."""
    odds = (1, 3, 5, 9, 15, 25, 27, 45, 75, 81, 125, 135)
    sizes = {odd << max(2, (-(-least // odd) - 1).bit_length()) for odd in odds}
    return [choose_grid(each, lanes) for each in sorted(sizes) if each <= 1.1 * min(sizes)]


def wide_grid(d: int, radius: int, lanes: int) -> TransformGrid:
    """Grid on which weights of this radius act on ``d`` samples, with the cost of all steps."""
    best = min(_padded_grids(d + 2 * radius, lanes), key=_cost)
    return replace(best, cost=best.cost + 6.0 * -(-d // lanes) + 200)


def wide_gains(weights: Array, size: int) -> Array:
    """Spectrum of symmetric weights on a circulant, with the transforms' ``1 / size``."""
    kernel = np.zeros(size)
    kernel[: len(weights)] = weights
    kernel[size - len(weights) + 1 :] = weights[:0:-1]
    gains: Array = np.fft.rfft(kernel).real / size
    return gains


def _smooth_grid(size: int, lanes: int) -> TransformGrid:
    """The cheapest grid for a circulant of ``size``: its own, or where that has a large prime, one
    that holds it with room for all that its ends add, a power of two times powers of 3 and 5.

    >>> _smooth_grid(10010, lanes=8).size, _smooth_grid(10007, lanes=8).size
    (10010, 20736)
    """
    own = choose_grid(size, lanes)
    if own.cost < math.inf and (2 * size - 1 > LARGEST_PADDED or not _large_prime(size)):
        return own
    return min(own, *_padded_grids(2 * size - 1, lanes), key=_cost)


def _full(d: int, removed: Array, double: bool, lanes: int) -> LowBand:
    """The whole spectrum. A length with a large prime is embedded in a smoother one."""
    grid = _smooth_grid(d, lanes)
    strategy = "full" if grid.size == d else "padded"
    bound = largest_factor(removed) * rounding(double, transform_units(grid.size))
    cost = grid.cost + 2.0 * -(-d // lanes)
    return LowBand(d, removed, strategy, grid=grid, error_bound=bound, cost=cost)


def remove_low_band(
    d: int, removed: Array, double: bool, lanes: int, strategy: str = "auto"
) -> LowBand:
    """The cheapest design for vectors of ``lanes`` numbers.

    removed: share that is taken out of bins ``0, 1, ...``; all later bins are kept.

    >>> remove_low_band(36864, np.ones(921), double=False, lanes=8).strategy
    'band'
    """
    removed = np.trim_zeros(removed, "b")
    cutoff = len(removed)
    if cutoff == 0:
        return LowBand(d, removed, cost=0.0)
    # the wave of the last bin of an even length has no partner
    pairs = 2 * cutoff - 1 <= d and bool(np.all(removed >= 0))
    is_mean = cutoff == 1 and removed[0] == 1  # which needs no basis
    waves = pairs and (is_mean or (2 * cutoff - 1) * d <= LARGEST_DENSE_BASIS)
    best = LowBand(d, removed)
    if waves and (strategy == "dense" or (strategy == "auto" and cutoff <= 64)):
        best = _dense(d, removed, double, lanes)
    if strategy in ("full", "auto"):
        best = min(best, _full(d, removed, double, lanes), key=_cost)
    if strategy in ("band", "auto"):
        best = min(best, _best_band(d, removed, double, lanes, best.cost), key=_cost)
    if best.cost == math.inf:
        raise ValueError(
            f"strategy {strategy!r} does not fit a layer of {d} samples with cutoff {cutoff}; "
            "use 'auto' or 'full'"
        )
    return best
