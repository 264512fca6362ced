"""Disagreement of clients, from their gradients taken one client at a time.

Let ``mean`` be the weighted mean of the clients so far and ``W`` their weight. A client with
gradient ``g`` and weight ``w`` adds ``w W / (W + w) |g - mean|^2`` to the disagreement, and moves
the mean by ``w / (W + w) (g - mean)``. The same holds for every bin of the spectrum. All terms are
positive, so nothing cancels even where the mean is far larger than what clients disagree about, and
only the mean has to be remembered: two models' worth of memory for float32 gradients, one for
float64, and what the transform of one layer needs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from specgrad_kernels import checks
from specgrad_kernels.layout import permute_axes, sample_order
from specgrad_kernels.spec import FilterSpec, is_sample_order
from specgrad_study.diagnosis.snapshot import Snapshot
from specgrad_study.diagnosis.spectra import (
    LayerSpectrum,
    bin_energies,
    circular_roughness,
    segment_edges,
    segment_energies,
)

Gradients = Mapping[str, Tensor]


class Disagreement:
    """Takes the clients' gradients one by one and measures how they differ.

    filtered: names of the filtered tensors, in the order of the spec's ratios if it has several
    spec: ratio and flattening order of the filter whose effect is measured; cutoffs follow from it
    measured: tensors whose spectrum is kept, by default the filtered ones

    >>> g = torch.linspace(-1, 1, 128).view(8, 16)
    >>> meter = Disagreement(["weight"], FilterSpec(ratio=0.1))
    >>> for scale in (1.0, 2.0, 3.0):
    ...     meter.add(1.0, {"weight": scale * g, "bias": torch.ones(8)})
    >>> round(meter.result().layers["weight"].kappa(), 3)
    0.89
    """

    def __init__(
        self,
        filtered: Collection[str],
        spec: FilterSpec | None = None,
        *,
        measured: Collection[str] | None = None,
    ) -> None:
        self.filtered = list(filtered)
        self.spec = spec or FilterSpec()
        self.spec.check_count(len(self.filtered))
        if self.spec.batch_dims:
            raise ValueError(
                f"batch_dims is {self.spec.batch_dims}; a diagnosis takes one client at a time, "
                "so use batch_dims=0"
            )
        self.measured = set(self.filtered if measured is None else measured) | set(self.filtered)
        self.weight = 0.0
        self.clients = 0
        self._layers: dict[str, _Layer] = {}

    def add(self, weight: float, gradients: Gradients) -> None:
        """Take one client's gradients by name. The tensors are read, not kept or changed."""
        if not (weight > 0 and math.isfinite(weight)):
            raise ValueError(f"weight is {weight}; a client's weight must be positive and finite")
        layers = self._layers or self._begin(gradients)
        _check(gradients, layers)
        self._layers = layers
        factor = weight / (self.weight + weight)
        # the largest first: what it frees is room enough for all others
        for name, layer in sorted(self._layers.items(), key=lambda item: -item[1].d):
            layer.add_spectrum(self.weight * factor, factor, gradients[name].detach())
        self.weight += weight
        self.clients += 1

    def _begin(self, gradients: Gradients) -> dict[str, _Layer]:
        for name in (*self.filtered, *sorted(self.measured)):
            if name not in gradients:
                raise ValueError(f"no gradient is named {name!r}, which is to be measured")
        layers = {}
        for name, gradient in gradients.items():
            index = self.filtered.index(name) if name in self.filtered else None
            spec = None if index is None else self.spec.select([index])
            try:
                layers[name] = _Layer(gradient.detach(), spec, name in self.measured)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name} cannot be measured: {error}") from error
        return layers

    def result(self) -> Snapshot:
        """Snapshot of the clients so far."""
        if not self.clients:
            raise ValueError("no client was added yet; call add(weight, gradients) first")
        layers = {n: layer.spectrum(n, self.weight) for n, layer in self._layers.items()}
        return Snapshot(layers, tuple(self.filtered), self.clients, self.weight)


def measure(
    clients: Iterable[tuple[float, Gradients]],
    filtered: Collection[str],
    spec: FilterSpec | None = None,
    *,
    measured: Collection[str] | None = None,
) -> Snapshot:
    """The disagreement of ``(weight, gradients)`` pairs, which are taken one at a time."""
    meter = Disagreement(filtered, spec, measured=measured)
    for weight, gradients in clients:
        meter.add(weight, gradients)
    return meter.result()


def _check(gradients: Gradients, layers: Mapping[str, _Layer]) -> None:
    """Refuse before anything is added, so that a caught mistake leaves no half client."""
    if set(gradients) != set(layers):
        odd = sorted(set(gradients) ^ set(layers))[0]
        raise ValueError(f"clients must have the same tensors; only some have {odd!r}")
    for name, layer in layers.items():
        if gradients[name].shape != layer.shape:
            raise ValueError(
                f"{name} has shape {tuple(gradients[name].shape)} here and "
                f"{tuple(layer.shape)} at the first client"
            )
        if not bool(torch.isfinite(gradients[name]).all()):
            raise ValueError(f"the gradient of {name} holds NaN or Inf; leave this client out")


class RunningMean:
    """Weighted mean of tensors and their squared distance from it, one tensor at a time.

    first: a tensor of the same shape, which is not added yet
    """

    def __init__(self, first: Tensor) -> None:
        self.mean = torch.zeros(first.numel(), dtype=torch.float64, device=first.device)
        self.total = 0.0

    def add(self, scale: float, step: float, tensor: Tensor) -> Tensor:
        """Add ``scale |t - mean|^2`` to the total and ``step (t - mean)`` to the mean; the
        difference ``t - mean`` is returned."""
        difference = tensor.reshape(-1).to(torch.float64, copy=True).sub_(self.mean)
        self.mean.add_(difference, alpha=step)
        if scale:
            self.total += scale * float(torch.dot(difference, difference))
        return difference

    @property
    def signal(self) -> float:
        """Energy of the mean."""
        return float(torch.dot(self.mean, self.mean))


class _Layer(RunningMean):
    """Running mean and energies of one tensor. ``spec`` is ``None`` where it is not filtered."""

    def __init__(self, first: Tensor, spec: FilterSpec | None, measured: bool) -> None:
        checks.check_tensor(first, 0)
        super().__init__(first)
        self.shape = first.shape
        self.d = first.numel()
        if spec:
            checks.check_grads([first], spec)
            self._in_order(first.reshape(-1), spec)  # refuses an order that does not fit
        self.dtype = first.dtype if first.dtype == torch.float64 else torch.float32
        self.spec = spec
        self.cutoff = spec.cutoff(self.d) if spec else 0
        self.edges = segment_edges(self.d, [self.cutoff]) if measured and self.d else []
        self.energies = torch.zeros(max(0, len(self.edges) - 1), dtype=torch.float64)
        self.roughness = 0.0

    def add_spectrum(self, scale: float, step: float, gradient: Tensor) -> None:
        """Add a gradient, and the spectrum of its difference from the mean."""
        difference = self.add(scale, step, gradient).to(self.dtype)
        if scale and self.edges:  # the first client has no mean to differ from yet
            signal = self._in_order(difference, self.spec)
            self.roughness += scale * circular_roughness(signal)
            self.energies += scale * segment_energies(bin_energies(signal), self.edges)

    def _in_order(self, flat: Tensor, spec: FilterSpec | None) -> Tensor:
        """The signal that a filter sees: the layer in its flattening order."""
        if spec is None or spec.order is None:
            return flat
        if is_sample_order(spec.order):
            return flat[sample_order(self.d, spec).to(flat.device)]
        return permute_axes([flat.view(self.shape)], spec)[0].reshape(-1)

    def spectrum(self, name: str, weight: float) -> LayerSpectrum:
        signal = self.energies
        if self.edges:
            ordered = self._in_order(self.mean.to(self.dtype), self.spec)
            signal = segment_energies(bin_energies(ordered), self.edges)
        return LayerSpectrum(
            name=name,
            d=self.d,
            cutoff=self.cutoff,
            edges=tuple(self.edges),
            disagreement=self.energies / weight,
            signal=signal,
            total=self.total / weight,
            total_signal=self.signal,
            roughness=self.roughness / weight,
        )
