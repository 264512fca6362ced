"""Methods for questions about channel means: filters that act in part, or at the server alone.

Use them as ``module:Class``, such as ``method = "specgrad_study.variants:Damped"``. The filter
itself is the configuration's: ``filter = "centralize"``, ``"fft"``, or another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from specgrad_fl import models
from specgrad_fl.config import Config
from specgrad_fl.filters import filter_plan
from specgrad_fl.methods import Federation, Local, Method, Round
from specgrad_fl.methods.base import Vectors, option
from specgrad_fl.methods.bundled import FedSAM
from specgrad_fl.vectors import FlatModel
from torch import Tensor

from specgrad_kernels import FilterPlan, FilterSpec

HEAD = r"^head\.weight$"


@dataclass
class Strength:
    """The client's filter at a strength: 0 leaves the gradient, 1 filters it, 0.5 half of each."""

    filter_: Callable[[], None]
    g: Tensor
    value: float = 1.0

    def __call__(self) -> None:
        if self.value == 1.0:
            self.filter_()
        elif self.value:
            before = self.g.clone()
            self.filter_()
            self.g.lerp_(before, 1 - self.value)


def set_strength(local: Local, value: float) -> None:
    """Filter this client's gradients at ``value`` from now on."""
    if not isinstance(local.filter_, Strength):
        local.filter_ = Strength(local.filter_, local.g)
    local.filter_.value = value


class Damped(Method):
    """FedAvg whose filter removes only a share; with ``centralize`` this is SGMS."""

    name = "specgrad_study.variants:Damped"

    @dataclass(frozen=True)
    class Options:
        strength: float = option(0.5, low=0, high=1)

    def gradient(self, local: Local) -> Tensor:
        set_strength(local, self.options.strength)
        return local.backward()


class Half(Method):
    """FedAvg that filters in half of the steps, clients or rounds: every second one."""

    name = "specgrad_study.variants:Half"
    sent_vectors = ("rounds",)

    @dataclass(frozen=True)
    class Options:
        of: str = option("steps", choices=("steps", "clients", "rounds"))

    def gradient(self, local: Local) -> Tensor:
        number = {
            "steps": local.steps,
            "clients": local.client,
            "rounds": int(local.sent["rounds"][0]),
        }[self.options.of]
        set_strength(local, float(number % 2 == 0))
        return local.backward()

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        server["rounds"] = server["rounds"] + 1
        return super().aggregate(round, server)


class FedFFT(FedSAM):
    """FedSAM whose perturbation alone is filtered, and not the gradient taken there."""

    name = "specgrad_study.variants:FedFFT"

    @dataclass(frozen=True)
    class Options(FedSAM.Options):
        filter_ascent: bool = True

    def gradient(self, local: Local) -> Tensor:
        set_strength(local, 1.0)
        loss = super().gradient(local)
        set_strength(local, 0.0)
        return loss


class Projection:
    """A filter of flat vectors, for a method that knows no model: it builds one for the shapes."""

    def __init__(
        self, federation: Federation, name: str, spec: FilterSpec, select: str = "auto"
    ) -> None:
        classes = federation.histograms.shape[1]
        for channels in (3, 1):
            model = models.build(name, models.Inputs(classes, channels, 32))
            self.model, self._flat = model, FlatModel(model)
            if self._flat.size == federation.size:
                break
        else:
            raise ValueError(
                f"model {name!r} has {self._flat.size} weights, and the run {federation.size}; "
                "give the run's model as the option model"
            )
        asked = filter_plan(model, Config(filter="centralize", filter_select=select))
        assert asked is not None
        self.layers = {each: self.segments[each] for each in asked.names}
        self.use([spec])

    @property
    def segments(self) -> dict[str, slice]:
        """Places of the parameters in a flat vector; :attr:`layers` has the filtered ones."""
        return self._flat.segments

    def use(self, specs: Iterable[FilterSpec]) -> None:
        """Filter all layers by one spec from now on, or each by its own."""
        layers = [(each, self.model.get_parameter(each)) for each in self.layers]
        match list(specs):
            case [spec]:
                self._plans = [FilterPlan(layers, spec)]
            case each:
                pairs = zip(layers, each, strict=True)
                self._plans = [FilterPlan([layer], spec) for layer, spec in pairs]

    @torch.no_grad()
    def __call__(self, vector: Tensor) -> Tensor:
        """The vector, filtered."""
        self._flat.grads.copy_(vector)
        for plan in self._plans:
            plan.filter_grads_()
        return self._flat.grads.clone()


class Projecting(Method):
    """A method with a projection of its own."""

    @dataclass(frozen=True)
    class Options:
        layers: str = "auto"
        model: str = "resnet8"

    def __init__(self, options: Options, federation: Federation) -> None:
        super().__init__(options, federation)
        self.project = Projection(federation, options.model, self.spec(), options.layers)

    def spec(self) -> FilterSpec:
        return FilterSpec("centralize")


class ServerCentralize(Projecting):
    """FedAvg whose server centralises the averaged update of some layers.

    With ``filter = "centralize"`` and the head as layers this is GC-Fed: the feature extractor is
    centralised at the clients, the classifier at the server.
    """

    name = "specgrad_study.variants:ServerCentralize"

    def server_step(self, round: Round, average: Tensor) -> Tensor:
        update = self.project(average - round.start)
        return super().server_step(round, round.start + update)


class MeansBack(Projecting):
    """FedAvg whose clients put the channel means of their weights back before they send them."""

    name = "specgrad_study.variants:MeansBack"

    def finish(self, local: Local) -> None:
        local.w.copy_(local.start + self.project(local.w - local.start))


class Laplacian(Projecting):
    """FedAvg with Laplacian smoothing of the gradient of each layer (Osher et al., 2018).

    The gradient is divided by ``1 + 2 sigma (1 - cos(2 pi f))`` at ``f`` cycles per weight: the
    mean stays, high frequencies are damped.
    """

    name = "specgrad_study.variants:Laplacian"

    @dataclass(frozen=True)
    class Options(Projecting.Options):
        sigma: float = option(1.0, low=0)

    def spec(self) -> FilterSpec:
        shares = torch.linspace(0, 1, 257, dtype=torch.float64)  # of the highest frequency
        gains = 1 / (1 + 2 * self.options.sigma * (1 - torch.cos(torch.pi * shares)))
        return FilterSpec("spectrum", gains=list(zip(shares.tolist(), gains.tolist(), strict=True)))

    def gradient(self, local: Local) -> Tensor:
        loss = local.backward()
        local.g.copy_(self.project(local.g))
        return loss


class FedMuon(Method):
    """Orthogonal steps for convolutions and head, blended with the server's last direction.

    After Liu et al., 2025: the momentum ``M`` of each layer, as a matrix with a row for each output
    channel, becomes its nearest orthogonal matrix, times ``rate``; ``alpha`` of the step is the
    direction of the last round. Clients begin with that direction as momentum, where the original
    averages their momenta.
    """

    name = "specgrad_study.variants:FedMuon"
    sent_vectors = ("direction",)

    @dataclass(frozen=True)
    class Options:
        alpha: float = option(0.5, low=0, high=1)
        beta: float = option(0.9, low=0, high=1)
        rate: float = option(0.05, low=0)
        model: str = "resnet8"

    def __init__(self, options: Options, federation: Federation) -> None:
        super().__init__(options, federation)
        shapes = Projection(federation, options.model, FilterSpec("centralize"))
        self._segments = [
            (place, parameter.shape)
            for name, place in shapes.segments.items()
            if (parameter := shapes.model.get_parameter(name)).dim() > 1
        ]

    def gradient(self, local: Local) -> Tensor:
        loss = local.backward()
        if not local.steps:
            local.momentum = local.sent["direction"].clone()  # type: ignore[attr-defined]
        momentum: Tensor = local.momentum  # type: ignore[attr-defined]
        momentum.mul_(self.options.beta).add_(local.g)
        for place, shape in self._segments:
            matrix = orthogonal(momentum[place].view(shape[0], -1))
            step = self.options.rate * matrix.reshape(-1)
            local.g[place] = torch.lerp(step, local.sent["direction"][place], self.options.alpha)
        return loss

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        shares = self.shares(round)[:, None].float()
        server["direction"] = (shares * round.applied(server["direction"])).sum(0)
        return super().aggregate(round, server)


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix whose singular values are all 1.

    >>> orthogonal(torch.tensor([[3.0, 0.0], [0.0, -2.0]])).tolist()
    [[1.0, 0.0], [0.0, -1.0]]
    """
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right
