"""The quantities of the convergence theorem, measured: budgets, noise, and the bound they give.

These numbers are diagnostic. The theorem is about a step of size ``1 / (L E sqrt(T))`` without
weight decay, clipping or momentum, and about maxima over all weights; a training run takes other
steps, and its snapshots are a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from specgrad_study.diagnosis.disagreement import Gradients
from specgrad_study.diagnosis.snapshot import Snapshot


@dataclass(frozen=True)
class Budget:
    """Quantities of the theorem, as maxima and minima over snapshots.

    kappa: the least share of a filtered layer's disagreement below its cutoff
    rho: the largest share of the mean gradient that the filter removes
    measured: the largest disagreement left after the filter, ``delta_high^2``
    certified: the bound on it that kappa gives, ``(1 - kappa) delta_S^2 + delta_res^2``
    delta_filtered, delta_residual: the largest disagreement in filtered and other layers
    """

    kappa: float | None
    rho: float | None
    measured: float
    certified: float
    delta_filtered: float
    delta_residual: float


def budget(snapshots: Sequence[Snapshot]) -> Budget:
    """The constants of the theorem over all snapshots. Measured is never more than certified."""
    if not snapshots:
        raise ValueError("snapshots is empty; give at least one")
    kappa = min((s.kappa for s in snapshots if s.kappa is not None), default=None)
    delta_filtered = max(s.filtered_disagreement for s in snapshots)
    delta_residual = max(s.residual_disagreement for s in snapshots)
    return Budget(
        kappa=kappa,
        rho=max((s.rho for s in snapshots if s.rho is not None), default=None),
        measured=max(s.delta_high for s in snapshots),
        certified=(1 - (kappa or 0.0)) * delta_filtered + delta_residual,
        delta_filtered=delta_filtered,
        delta_residual=delta_residual,
    )


def noise(
    full: Gradients, batches: Iterable[Gradients], *, full_is_their_mean: bool = False
) -> float:
    """One client's gradient noise ``sigma_k^2``: mean squared distance of batches to ``full``.

    batches: gradients of mini-batches, taken one at a time; eight or more make a fair estimate
    full_is_their_mean: whether ``full`` is the mean of these very batches, which lie closer to it
        than to the true gradient; the estimate is then corrected by ``R / (R - 1)``

    >>> one = {"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([-1.0, 0.0])}
    >>> noise({"w": torch.zeros(2)}, one)
    1.0
    """
    total, count = 0.0, 0
    for batch in batches:
        for name, gradient in full.items():
            difference = batch[name].reshape(-1).double() - gradient.reshape(-1)
            total += float(torch.dot(difference, difference))
        count += 1
    if count < 1 + full_is_their_mean:
        raise ValueError(f"batches holds {count}; give at least {1 + full_is_their_mean}")
    return total / (count - 1 if full_is_their_mean else count)


@dataclass(frozen=True)
class Noise:
    """Gradient noise of all clients: ``sum p_k sigma_k^2`` and ``sum p_k^2 sigma_k^2``."""

    local: float
    averaged: float


def combined_noise(weights: Sequence[float], sigmas: Sequence[float]) -> Noise:
    """The two sums of the theorem from each client's weight and ``sigma_k^2``.

    >>> combined_noise([1, 1], [2.0, 4.0])
    Noise(local=3.0, averaged=1.5)
    """
    whole = math.fsum(weights)
    shares = [weight / whole for weight in weights]
    return Noise(
        math.fsum(p * s for p, s in zip(shares, sigmas, strict=True)),
        math.fsum(p * p * s for p, s in zip(shares, sigmas, strict=True)),
    )


def sampling_factor(clients: int, active: int) -> float:
    """``q_M = (K - M) / (M (K - 1))``: how much drawing ``M`` of ``K`` clients adds.

    >>> sampling_factor(100, 10) == 1 / 11, sampling_factor(100, 100)
    (True, 0.0)
    """
    if not (clients >= 2 and 1 <= active <= clients):
        raise ValueError(
            f"clients is {clients} and active {active}; the corollary needs at least 2 clients "
            "and 1 <= active <= clients"
        )
    return (clients - active) / (active * (clients - 1))


@dataclass(frozen=True)
class Bound:
    """A bound on the mean squared gradient norm, as a function of the smoothness ``L``.

    ``L`` cannot be observed, so the bound is kept as ``slope L + constant``.

    >>> Bound(slope=2.0, constant=1.0).at(3.0)
    7.0
    """

    slope: float
    constant: float

    def at(self, smoothness: float) -> float:
        """The bound for one ``L``."""
        return self.slope * smoothness + self.constant


LEAST_ROUNDS = 64


def theorem_bound(
    *, gap: float, rho: float, delta_high: float, noise: Noise, rounds: int, steps: int
) -> Bound:
    """Theorem 1, all clients in every round.

    gap: ``F(w_0) - F*``, at most the first loss for cross-entropy
    rho: of :class:`Budget`; delta_high: its measured or certified ``delta_high^2``
    rounds, steps: ``T``, and ``E`` local steps in a round
    """
    if not 0 <= rho < 1:
        raise ValueError(f"rho is {rho}; the theorem needs 0 <= rho < 1, so filter less")
    if rounds < LEAST_ROUNDS:
        raise ValueError(f"rounds is {rounds}; the theorem begins at {LEAST_ROUNDS}")
    if steps < 1:
        raise ValueError(f"steps is {steps}; a client takes at least 1")
    root = math.sqrt(rounds)
    drift = (36 * delta_high + 12 * noise.local) / rounds
    spread = 8 * noise.averaged / (steps * root)
    return Bound(8 * gap / (root * (1 - rho)), (drift + spread) / (1 - rho))


def partial_bound(
    *,
    gap: float,
    rho: float,
    delta_high: float,
    noise: Noise,
    rounds: int,
    steps: int,
    clients: int,
    active: int,
) -> Bound:
    """The corollary: ``active`` of ``clients`` clients of equal weight, drawn in every round.

    It is the theorem with more noise of the average: only those drawn share their noise, and what
    they disagree about is the same in all steps of the round.
    """
    drawn = steps * sampling_factor(clients, active) * delta_high
    return theorem_bound(
        gap=gap,
        rho=rho,
        delta_high=delta_high,
        noise=Noise(noise.local, noise.local / active + drawn),
        rounds=rounds,
        steps=steps,
    )
