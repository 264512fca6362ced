"""Disagreement of clients at one set of weights, and over several: bands, rho, budgets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specgrad_study.diagnosis.spectra import LayerSpectrum


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The clients' gradients at one set of weights.

    layers: every tensor of the model by name
    selected: names of the tensors that are given to the filter, in the order of its ratios
    clients, weight: how many were added, and their weights' sum
    """

    layers: Mapping[str, LayerSpectrum]
    selected: tuple[str, ...]
    clients: int
    weight: float

    @property
    def filtered(self) -> list[LayerSpectrum]:
        """The layers that the filter changes: those selected whose cutoff is not 0."""
        return [layer for layer in self.layers.values() if layer.filtered]

    def bands(self, names: Collection[str] | None = None) -> Tensor:
        """Mean over layers of the disagreement in each band, ``float64 [10]``.

        names: the layers that count, by default all whose spectrum was measured. Layers with
        fewer than ten bins never do.
        """
        wanted = self.layers if names is None else names
        rows = [self.layers[n].bands() for n in wanted if self.layers[n].has_bands]
        if not rows:
            raise ValueError("no layer has a measured spectrum of at least ten bins")
        return torch.stack(rows).mean(0)

    @property
    def filtered_disagreement(self) -> float:
        """Disagreement in the filtered layers, before the filter."""
        return sum(float(layer.disagreement.sum()) for layer in self.filtered)

    @property
    def residual_disagreement(self) -> float:
        """Disagreement in the layers that are not filtered."""
        return sum(layer.total for layer in self.layers.values() if not layer.filtered)

    @property
    def delta_high(self) -> float:
        """Disagreement left after the filter, over the whole model: ``delta_high^2``."""
        return sum(layer.high() for layer in self.layers.values())

    @property
    def signal(self) -> float:
        """Squared norm of the clients' mean gradient."""
        return sum(layer.total_signal for layer in self.layers.values())

    @property
    def rho(self) -> float | None:
        """Share of the mean gradient's energy that the filter removes; ``None`` if it is zero."""
        removed = sum(layer.low_signal() for layer in self.filtered)
        return min(1.0, removed / self.signal) if self.signal > 0 else None

    @property
    def kappa(self) -> float | None:
        """The least kappa of a filtered layer; ``None`` without disagreement in any of them."""
        known = [k for layer in self.filtered if (k := layer.kappa()) is not None]
        return min(known, default=None)

    @property
    def parseval_error(self) -> float:
        """The largest relative Parseval error of a layer."""
        return max(layer.parseval_error for layer in self.layers.values())

    def as_dict(self) -> dict[str, Any]:
        """All of it in a form that JSON can carry."""
        return {
            "clients": self.clients,
            "weight": self.weight,
            "selected": list(self.selected),
            "layers": [
                {**vars(layer), "disagreement": layer.disagreement.tolist(),
                 "signal": layer.signal.tolist(), "edges": list(layer.edges)}
                for layer in self.layers.values()
            ],
        }  # fmt: skip

    @staticmethod
    def parse(fields: Mapping[str, Any]) -> Snapshot:
        """The inverse of :meth:`as_dict`."""
        layers = {}
        for row in fields["layers"]:
            energies = {
                key: torch.tensor(row[key], dtype=torch.float64)
                for key in ("disagreement", "signal")
            }
            layers[row["name"]] = LayerSpectrum(**{**row, **energies, "edges": tuple(row["edges"])})
        return Snapshot(**{**fields, "layers": layers, "selected": tuple(fields["selected"])})


def mean_bands(snapshots: Sequence[Snapshot], names: Collection[str] | None = None) -> Tensor:
    """Disagreement in each band, averaged over layers and snapshots, ``float64 [10]``."""
    if not snapshots:
        raise ValueError("snapshots is empty; give at least one")
    return torch.stack([snapshot.bands(names) for snapshot in snapshots]).mean(0)


def band_shares(snapshots: Sequence[Snapshot], names: Collection[str] | None = None) -> Tensor:
    """Share of each band in :func:`mean_bands`; all zero where clients do not disagree."""
    energies = mean_bands(snapshots, names)
    whole = energies.sum()
    return energies / whole if whole > 0 else energies
