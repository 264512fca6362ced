"""Where in the spectrum clients disagree, what a filter would do about it, and how to choose one.

Pure functions on gradients, fed one client at a time::

    meter = Disagreement(filtered_names, FilterSpec(ratio=0.05))
    for samples, gradients in clients:          # gradients: name -> tensor
        meter.add(samples, gradients)
    snapshot = meter.result()
    snapshot.bands(), snapshot.rho, snapshot.layers["conv1.weight"].kappa()
"""

from specgrad_kernels.diagnostics.alignment import Cosines
from specgrad_kernels.diagnostics.cka import debiased_cka, hsic1, linear_cka, mean_between
from specgrad_kernels.diagnostics.disagreement import Disagreement, filter_variants, measure
from specgrad_kernels.diagnostics.recommend import Choice, Recommendation, recommend
from specgrad_kernels.diagnostics.snapshot import Snapshot, band_shares, mean_bands
from specgrad_kernels.diagnostics.spectra import BANDS, RATIOS, LayerSpectrum, parseval_weights
from specgrad_kernels.diagnostics.theory import (
    Bound,
    Budget,
    Noise,
    budget,
    combined_noise,
    noise,
    partial_bound,
    sampling_factor,
    theorem_bound,
)

__all__ = [
    "BANDS",
    "RATIOS",
    "Bound",
    "Budget",
    "Choice",
    "Cosines",
    "Disagreement",
    "LayerSpectrum",
    "Noise",
    "Recommendation",
    "Snapshot",
    "band_shares",
    "budget",
    "combined_noise",
    "debiased_cka",
    "filter_variants",
    "hsic1",
    "linear_cka",
    "mean_bands",
    "mean_between",
    "measure",
    "noise",
    "parseval_weights",
    "partial_bound",
    "recommend",
    "sampling_factor",
    "theorem_bound",
]
