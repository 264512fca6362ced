"""Spectrum of the channel means of a gradient, and the share that a spectral filter removes.

The mean gradient of each output channel, laid out in the flattened tensor, is a staircase: ``n``
equal samples for each channel of ``n`` weights. If the means of different channels are
independent, its power at ``f`` cycles per sample is ``sin^2(pi f n) / (n sin^2(pi f))`` times their
variance: a peak of width ``1 / n`` at zero. A filter that removes the share ``ratio`` of the
spectrum removes everything below ``ratio / 2``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from specgrad_fl.plots import save

Values = NDArray[np.float64]
# weights of one channel in the three stages of a ResNet for CIFAR: 3 x 3 kernels, input channels
STAGES = {"16 channels": 144, "32 channels": 288, "64 channels": 576}
RATIOS = (0.002, 0.005, 0.01, 0.05)
STEPS = 20_000


def power(frequency: Values, weights: int) -> Values:
    """Power of the staircase of channel means of variance 1, with ``weights`` samples a step.

    >>> power(np.array([0.0, 1 / 144]), 144).round(6).tolist()
    [144.0, 0.0]
    """
    below = weights * np.sin(np.pi * frequency) ** 2
    above = np.sin(np.pi * frequency * weights) ** 2
    zero = frequency == 0
    return np.where(zero, weights, above / np.where(zero, 1.0, below))


def removed(ratio: float, weights: int) -> float:
    """Share of the means' energy below the cutoff of a ratio.

    >>> round(removed(0.05, 144), 2), round(removed(0.002, 144), 2)
    (0.97, 0.28)
    """
    middles = (np.arange(STEPS) + 0.5) / STEPS * ratio / 2
    # half of a spectrum that is symmetric, and whose whole integral is 1
    return float(2 * power(middles, weights).mean() * ratio / 2)


def draw(path: Path) -> None:
    """Left: the spectrum of the means, with cutoffs; right: what a ratio removes of them."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    frequency = np.geomspace(1e-4, 0.5, 2000)
    ladder = np.geomspace(1e-3, 0.2, 60)
    for label, weights in STAGES.items():
        left.plot(frequency, power(frequency, weights), lw=1, label=f"{label}, n = {weights}")
        right.plot(ladder, [100 * removed(r, weights) for r in ladder], label=label)
    left.axhline(1, color="0.5", ls="--", lw=1, label="weights without structure")
    for ratio in RATIOS:
        left.axvline(ratio / 2, color="black", lw=0.7, ls=":")
        left.text(ratio / 2, 700, f"{ratio:g} ", fontsize="small", ha="right", va="top")
        right.axvline(ratio, color="black", lw=0.7, ls=":")
    left.set(xscale="log", yscale="log", ylim=(1e-3, 1000))
    left.set(
        xlabel="frequency, cycles per weight (dotted: cutoffs of ratios)",
        ylabel="power, in variances of the means",
    )
    left.set_title("Spectrum of the channel means")
    right.plot(ladder, 100 * ladder, color="0.5", ls="--", lw=1, label="weights without structure")
    right.set(xscale="log", xlabel="ratio of the spectral filter", ylabel="removed energy, %")
    right.set_title("Share of them that the filter removes")
    for axes, place in ((left, "lower left"), (right, "center right")):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc=place)
    save(figure, path, dpi=110)


if __name__ == "__main__":
    import sys

    draw(Path(sys.argv[1]))
