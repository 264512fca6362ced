"""Is a federation drifting, where in the spectrum, and which layers should be filtered?

What is public are pure functions on gradients, fed one client at a time; they need no trainer::

    meter = Disagreement(filtered_names, FilterSpec(ratio=0.05))
    for samples, gradients in clients:          # gradients: name -> tensor
        meter.add(samples, gradients)
    snapshot = meter.result()
    snapshot.bands(), snapshot.rho, snapshot.layers["conv1.weight"].kappa()
"""

from specgrad_study.diagnosis.alignment import Cosines
from specgrad_study.diagnosis.cka import debiased_cka, hsic1
from specgrad_study.diagnosis.disagreement import Disagreement, measure
from specgrad_study.diagnosis.effects import Effect, Effects
from specgrad_study.diagnosis.recommend import Choice, Recommendation, recommend
from specgrad_study.diagnosis.snapshot import Snapshot, band_shares, mean_bands
from specgrad_study.diagnosis.spectra import BANDS, RATIOS, LayerSpectrum, parseval_weights
from specgrad_study.diagnosis.theory import (
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
    "Effect",
    "Effects",
    "LayerSpectrum",
    "Noise",
    "Recommendation",
    "Snapshot",
    "band_shares",
    "budget",
    "combined_noise",
    "debiased_cka",
    "hsic1",
    "mean_bands",
    "measure",
    "noise",
    "parseval_weights",
    "partial_bound",
    "recommend",
    "sampling_factor",
    "theorem_bound",
]
