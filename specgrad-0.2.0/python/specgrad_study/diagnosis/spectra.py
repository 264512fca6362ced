"""The one-sided spectrum of one layer: Parseval weights, bands, and energy below a cutoff.

A layer's spectrum is kept as energies of consecutive runs of bins. Their edges hold every band
edge, the cutoffs of all ratios in :data:`RATIOS`, and the cutoff of the filter in use, so that all
questions asked later have exact answers while a layer of millions of weights costs a few hundred
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import torch
from torch import Tensor

from specgrad_kernels import reference
from specgrad_kernels.spec import Ratio

BANDS = 10
RATIO_STEPS = 200
RATIOS = tuple(Fraction(step, RATIO_STEPS) for step in range(RATIO_STEPS // 2 + 1))


def parseval_weights(d: int) -> Tensor:
    """Multiplicity of each rFFT bin of ``d`` real samples in the full spectrum, float64.

    >>> parseval_weights(6), parseval_weights(5)
    (tensor([1., 2., 2., 1.], dtype=torch.float64), tensor([1., 2., 2.], dtype=torch.float64))
    """
    weights = torch.full((reference.num_bins(d),), 2.0, dtype=torch.float64)
    weights[0] = 1
    if d % 2 == 0:
        weights[-1] = 1
    return weights


def band_edges(bins: int, bands: int = BANDS) -> list[int]:
    """First bin of each band, and the end: bin ``q`` lies in band ``floor(bands q / bins)``.

    >>> band_edges(23)
    [0, 3, 5, 7, 10, 12, 14, 17, 19, 21, 23]
    """
    return [math.ceil(Fraction(band * bins, bands)) for band in range(bands + 1)]


def has_bands(d: int) -> bool:
    """True if a signal of ``d`` samples has at least one bin for each band."""
    return reference.num_bins(d) >= BANDS


def segment_edges(d: int, cutoffs: Iterable[int]) -> list[int]:
    """Where the runs of bins begin and end whose energies are kept."""
    bins = reference.num_bins(d)
    edges = {0, bins, *cutoffs}
    edges |= {math.floor(ratio * bins) for ratio in RATIOS}
    if has_bands(d):
        edges |= set(band_edges(bins))
    return sorted(edges)


def bin_energies(signal: Tensor) -> Tensor:
    """Energy of a flat signal in each rFFT bin, Parseval weights included, float64.

    The transform runs in the signal's own precision.

    >>> bin_energies(torch.tensor([1.0, -1.0, 1.0, -1.0]))               # all at Nyquist
    tensor([0., 0., 4.], dtype=torch.float64)
    """
    spectrum = torch.view_as_real(torch.fft.rfft(signal, norm="ortho"))
    power = spectrum.square_().sum(-1).double()
    return power.mul_(parseval_weights(signal.numel()).to(power.device))


def segment_energies(power: Tensor, edges: list[int]) -> Tensor:
    """Bin energies added up in runs of bins, float64 on the CPU."""
    lengths = torch.tensor(edges, device=power.device).diff()
    return torch.segment_reduce(power, "sum", lengths=lengths, initial=0).cpu()


def circular_roughness(signal: Tensor) -> float:
    """Squared norm of the circular first difference of a flat signal.

    >>> circular_roughness(torch.tensor([0.0, 1.0, 0.0, 1.0]))
    4.0
    """
    wrap = float(signal[0] - signal[-1]) ** 2
    return float(signal.diff().square_().sum()) + wrap


@dataclass(frozen=True, eq=False)
class LayerSpectrum:
    """Where in the spectrum the clients disagree about one layer.

    d: weights of the layer; cutoff: bins that its filter removes, 0 where it is not filtered
    edges: bins at which the kept runs begin, and the end; empty where no spectrum was asked for
    disagreement: ``float64`` energy of ``sum_k p_k |g_k - mean|^2`` in each run
    signal: the same for the clients' weighted mean
    total: the disagreement, and total_signal the mean's energy, both measured without a transform
    roughness: ``sum_k p_k |D (g_k - mean)|^2`` with the circular first difference ``D``
    """

    name: str
    d: int
    cutoff: int
    edges: tuple[int, ...]
    disagreement: Tensor
    signal: Tensor
    total: float
    total_signal: float
    roughness: float

    @property
    def bins(self) -> int:
        """Number of frequencies in the layer's spectrum."""
        return reference.num_bins(self.d)

    @property
    def filtered(self) -> bool:
        """True if the filter changes this layer; a cutoff of 0 leaves it alone."""
        return self.cutoff > 0

    @property
    def has_bands(self) -> bool:
        """True if the layer is long enough to be divided into bands, and was."""
        return bool(self.edges) and has_bands(self.d)

    def _between(self, energies: Tensor, first: int, end: int) -> float:
        for bin in (first, end):
            if bin not in self.edges:
                raise ValueError(
                    f"the spectrum of {self.name} is kept in runs of bins, and none begins at bin "
                    f"{bin}; use a ratio that is a multiple of {1 / RATIO_STEPS}, up to 0.5"
                )
        return float(energies[self.edges.index(first) : self.edges.index(end)].sum())

    def cutoff_of(self, ratio: Ratio) -> int:
        """Bins that ``ratio`` removes from this layer."""
        return reference.cutoff(ratio, self.d)

    def low(self, cutoff: int | None = None) -> float:
        """Disagreement that the filter removes: the energy of the bins below its cutoff."""
        return self._between(self.disagreement, 0, self.cutoff if cutoff is None else cutoff)

    def high(self) -> float:
        """Disagreement that the filter leaves; all of it in a layer that is not filtered."""
        if not self.filtered:
            return self.total
        return self._between(self.disagreement, self.cutoff, self.bins)

    def low_signal(self, cutoff: int | None = None) -> float:
        """Energy of the mean gradient that the filter removes."""
        return self._between(self.signal, 0, self.cutoff if cutoff is None else cutoff)

    def kappa(self, cutoff: int | None = None) -> float | None:
        """Share of the disagreement below the cutoff; ``None`` where there is no disagreement."""
        whole = float(self.disagreement.sum())
        return min(1.0, self.low(cutoff) / whole) if whole > 0 else None

    @property
    def tau(self) -> float | None:
        """Layout roughness of the disagreement: 0 for a constant, 2 for white noise, at most 4."""
        return self.roughness / self.total if self.total > 0 and self.edges else None

    @property
    def lambda_(self) -> float:
        """Roughness of the first frequency that the filter keeps: ``4 sin^2(pi c / d)``."""
        return 4 * math.sin(math.pi * self.cutoff / self.d) ** 2

    def bands(self) -> Tensor:
        """Disagreement in each of the ten bands, ``float64 [10]``."""
        if not self.has_bands:
            raise ValueError(f"{self.name} has {self.bins} bins, too few for {BANDS} bands")
        bands = pairwise(band_edges(self.bins))
        energies = [self._between(self.disagreement, first, end) for first, end in bands]
        return torch.tensor(energies, dtype=torch.float64)

    @property
    def parseval_error(self) -> float:
        """Relative distance of the energy of all bins from the disagreement itself."""
        if not self.edges or self.total == 0:
            return 0.0
        return abs(float(self.disagreement.sum()) - self.total) / self.total
