"""From a diagnosis to a filter: which layers, and how much of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specgrad_study.diagnosis.snapshot import Snapshot
from specgrad_study.diagnosis.spectra import RATIOS, LayerSpectrum


@dataclass(frozen=True)
class Choice:
    """One layer's ratio, 0 to leave it alone, what it removes at least and costs at most.

    removed: least share of the layer's disagreement that it removes, over the snapshots
    cost: largest share of the model's mean gradient that it removes
    reason: why this ratio
    """

    name: str
    ratio: float
    removed: float
    cost: float
    reason: str


@dataclass(frozen=True)
class Recommendation:
    """Ratios by layer.

    ``ratios`` has one number for each layer that was asked about, in their order: it is the
    ``ratio`` of :class:`specgrad_kernels.FilterSpec` and of ``filter_grads_`` for these layers.
    """

    choices: tuple[Choice, ...]
    rho: float

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ratio of each layer, 0 where it is left alone."""
        return tuple(choice.ratio for choice in self.choices)

    def as_table(self) -> dict[str, float]:
        """Layer name to ratio."""
        return {choice.name: choice.ratio for choice in self.choices}


def recommend(
    snapshots: Sequence[Snapshot],
    names: Collection[str] | None = None,
    *,
    share: float = 0.5,
    rho_limit: float = 0.5,
) -> Recommendation:
    """For each layer the smallest ratio that removes ``share`` of its disagreement.

    names: the layers in question, by default those selected for the diagnosed filter
    share: of a layer's disagreement, to be removed in every snapshot
    rho_limit: bound on rho, the share of the mean gradient's energy that all of them remove
        together, in every snapshot

    Ratios are multiples of 1/200 up to 1/2. A layer for which none suffices is left alone. Where
    the limit does not allow all, layers are taken in the order of disagreement removed for the
    gradient it costs.
    """
    if not snapshots:
        raise ValueError("snapshots is empty; give at least one")
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; choose a number above 0, at most 1")
    if not 0 <= rho_limit < 1:
        raise ValueError(f"rho_limit is {rho_limit}; choose a number in [0, 1)")
    wanted = snapshots[0].selected if names is None else names
    candidates = [_smallest(name, snapshots, share) for name in wanted]
    choices = [each.choice for each in candidates]
    spent = [0.0] * len(snapshots)
    for index in sorted(range(len(choices)), key=lambda i: candidates[i].worth, reverse=True):
        each = candidates[index]
        after = [s + c for s, c in zip(spent, each.costs, strict=True)]
        if each.choice.ratio == 0 or max(after) <= rho_limit:
            spent = after
        else:
            choices[index] = _left_alone(
                each.choice.name,
                f"ratio {each.choice.ratio:g} would cost {each.choice.cost:.1%} of the mean "
                f"gradient, and rho would be {max(after):.1%}",
            )
    return Recommendation(tuple(choices), max(spent))


class _Candidate(NamedTuple):
    """A layer with the smallest ratio that does enough, before rho is looked at."""

    choice: Choice
    energy: float
    costs: list[float]

    @property
    def worth(self) -> float:
        """Disagreement removed for the share of the gradient it costs."""
        return self.energy / self.choice.cost if self.choice.cost > 0 else float("inf")


def _left_alone(name: str, reason: str) -> Choice:
    return Choice(name, 0.0, 0.0, 0.0, reason)


def _smallest(name: str, snapshots: Sequence[Snapshot], share: float) -> _Candidate:
    layers = [_measured(snapshot, name) for snapshot in snapshots]
    nothing = [0.0] * len(layers)
    if all(layer.total == 0 for layer in layers):
        return _Candidate(_left_alone(name, "the clients agree about it"), 0.0, nothing)
    best = 0.0
    for ratio in RATIOS[1:]:
        cutoff = layers[0].cutoff_of(ratio)
        best = min(k for layer in layers if (k := layer.kappa(cutoff)) is not None)
        if best >= share:
            energy = sum(layer.low(cutoff) for layer in layers)
            costs = [
                layer.low_signal(cutoff) / snapshot.signal if snapshot.signal > 0 else 0.0
                for layer, snapshot in zip(layers, snapshots, strict=True)
            ]
            reason = f"removes {best:.1%} of its disagreement"
            return _Candidate(Choice(name, float(ratio), best, max(costs), reason), energy, costs)
    reason = f"even ratio {float(RATIOS[-1]):g} removes only {best:.1%} of its disagreement"
    return _Candidate(_left_alone(name, reason), 0.0, nothing)


def _measured(snapshot: Snapshot, name: str) -> LayerSpectrum:
    layer = snapshot.layers.get(name)
    if layer is None or not layer.edges:
        raise ValueError(
            f"there is no measured spectrum of {name!r}; name it in `filtered` or `measured`"
        )
    return layer
