"""Methods whose filter adapts itself: to sharpness, to what clients agree on, to the round.

Use them as ``module:Class`` with ``filter = "none"``, such as
``method = "specgrad_study.adaptive:Wiener"``: they bring their own filter.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from specgrad_fl.methods import Federation, Local, Round
from specgrad_fl.methods.base import Vectors, option
from torch import Tensor

from specgrad_kernels import FilterSpec
from specgrad_study.variants import Projecting

# upper ends of the bands of frequency, as shares of the highest: from 0.0056 to 1
BANDS = torch.logspace(-2.25, 0, 10, dtype=torch.float64)
# length of the step along which curvature is measured, over the norm of the weights
PROBE = 1e-3


class Sharpness(Projecting):
    """FedAvg that shortens each layer's channel means to what the learning rate can follow.

    Along a direction of curvature ``lambda`` a step of gradient descent overshoots where
    ``lr * lambda`` is above 2. A client measures the curvature of each layer along the channel
    means of its first batch, by a second gradient, and multiplies the means by
    ``min(1, 2 / (lr * lambda))`` for the rest of the round.
    """

    name = "specgrad_study.adaptive:Sharpness"
    client_vectors = ("damping",)

    def gradient(self, local: Local) -> Tensor:
        loss = local.backward()
        means = local.g - self.project(local.g)
        if not local.steps:
            local.state["damping"].copy_(self.damping(local, means))
        local.g.sub_(means * (1 - local.state["damping"]))
        return loss

    def damping(self, local: Local, means: Tensor) -> Tensor:
        """Factors of the means, the same for all weights of a layer."""
        weights, gradient = local.w.clone(), local.g.clone()
        probe = PROBE * float(weights.norm()) / max(float(means.norm()), 1e-30)
        local.w.add_(means, alpha=probe)
        local.backward()
        change = (local.g - gradient) / probe
        local.w.copy_(weights)
        local.g.copy_(gradient)
        factors = torch.ones_like(means)
        for place in self.project.layers.values():
            along = means[place]
            curvature = float(change[place].dot(along) / along.square().sum().clamp(min=1e-30))
            if local.lr * curvature > 2:
                factors[place] = 2 / (local.lr * curvature)
        return factors


class Wiener(Projecting):
    """FedAvg whose clients filter by gains that the server derives from their last updates.

    For each band of a layer's spectrum, with ``D`` the variance of the clients' updates and
    ``mean`` their mean: noise ``N = D M / (M - 1)``, signal ``S = max(0, |mean|^2 - D / (M - 1))``,
    and the gain ``S / (S + N)`` over the largest of the layer. Ten numbers a layer go down with the
    model. A gain is at least ``least``, or a band that once was noise would never be seen again.
    """

    name = "specgrad_study.adaptive:Wiener"
    sent_vectors = ("gains",)

    @dataclass(frozen=True)
    class Options(Projecting.Options):
        least: float = option(0.05, low=0, high=1)

    def __init__(self, options: Options, federation: Federation) -> None:
        super().__init__(options, federation)
        self._gains = torch.zeros(0)

    def server_state(self) -> Vectors:
        return {"gains": torch.ones(self.federation.size)}

    def gradient(self, local: Local) -> Tensor:
        loss = local.backward()
        sent = local.sent["gains"].cpu()
        if not sent.equal(self._gains):
            self._gains = sent.clone()
            self.project.use(
                FilterSpec("spectrum", gains=breakpoints(sent[place][: len(BANDS)]))
                for place in self.project.layers.values()
            )
        local.g.copy_(self.project(local.g))
        return loss

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        if len(round.clients) > 1:
            updates = round.applied(torch.zeros_like(round.start)).double()
            for place in self.project.layers.values():
                gains = wiener_gains(updates[:, place]).clamp(min=self.options.least)
                server["gains"][place][: len(BANDS)] = gains.float()
        return super().aggregate(round, server)


def wiener_gains(updates: Tensor) -> Tensor:
    """Gain of each band from one layer's updates, ``[M, n]``; a band without a bin has its left's.

    >>> alike = torch.randn(1, 4000, dtype=torch.float64).expand(5, -1)
    >>> wiener_gains(alike).tolist() == [1.0] * 10
    True
    """
    clients, samples = updates.shape
    spectra = torch.fft.rfft(updates)
    mean = spectra.mean(0)
    bins = torch.arange(len(mean), dtype=torch.float64) * 2 / samples
    band = torch.bucketize(bins.clamp(max=1), BANDS)
    power, spread = (
        torch.zeros(len(BANDS), dtype=torch.float64).index_add_(0, band, each)
        for each in (mean.abs().square(), (spectra - mean).abs().square().mean(0))
    )
    signal = (power - spread / (clients - 1)).clamp(min=0)
    gains = signal / (signal + spread * clients / (clients - 1))
    for number in torch.where(gains.isnan())[0].tolist():
        gains[number] = gains[number - 1] if number else 1.0
    return gains / gains.max() if gains.max() > 0 else torch.ones_like(gains)


def breakpoints(gains: Tensor) -> list[tuple[float, float]]:
    """Gains of the bands as breakpoints over frequency: one in the middle of each band."""
    ends = [0.0, *BANDS.tolist()]
    middles = [(low + high) / 2 for low, high in itertools.pairwise(ends)]
    values = gains.tolist()
    return [(0.0, values[0]), *zip(middles, values, strict=True), (1.0, values[-1])]


class Falling(Projecting):
    """FedAvg with the spectral filter at a ratio that falls in a line, from round to round."""

    name = "specgrad_study.adaptive:Falling"
    sent_vectors = ("rounds",)

    @dataclass(frozen=True)
    class Options(Projecting.Options):
        first: float = option(0.1, low=0, high=1)
        last: float = option(0.0, low=0, high=1)
        rounds: int = option(40, low=1)

    def spec(self, round: int = 0) -> FilterSpec:
        """The filter of a round."""
        first, last = self.options.first, self.options.last
        share = min(1.0, round / self.options.rounds)
        return FilterSpec("fft", first + (last - first) * share)

    def gradient(self, local: Local) -> Tensor:
        loss = local.backward()
        if not local.steps:
            self.project.use([self.spec(int(local.sent["rounds"][0]))])
        local.g.copy_(self.project(local.g))
        return loss

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        server["rounds"] = server["rounds"] + 1
        return super().aggregate(round, server)
