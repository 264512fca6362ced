"""The clients' gradients at fixed weights, from one of three sources.

``full``: one pass over all samples of a client; ``batch``: one mini-batch of them, as a step of
training sees it; ``update``: the way from the shared weights to those after local training, divided
by the learning rates on it. For the first two, samples are taken as they are, without augmentation,
and the model in evaluation mode. Clients come one after the other, and their gradients are never
held together.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from specgrad_data import Dataset
from specgrad_fl import building, filters, machine, samples
from specgrad_fl.building import Blueprint
from specgrad_fl.config import FIELDS, Config
from specgrad_fl.errors import ConfigError
from specgrad_fl.partition import Partition
from specgrad_fl.samples import Samples
from specgrad_fl.seeding import generator
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from specgrad_kernels import FilterPlan, FilterSpec, select_layers
from specgrad_kernels.flow import EMBEDDING, SHORTCUT, SHORTCUT_BY_SHAPE, TRANSITION
from specgrad_study.diagnosis import theory
from specgrad_study.diagnosis.disagreement import Disagreement
from specgrad_study.diagnosis.effects import Effect, Effects, Filtering
from specgrad_study.diagnosis.sharpness import UNFILTERED, sharpness
from specgrad_study.diagnosis.similarity import IMAGES, draw_images
from specgrad_study.diagnosis.snapshot import Snapshot
from specgrad_study.diagnosis.theory import Noise

PASS_BATCH = 250
FULL, BATCH, UPDATE = SOURCES = ("full", "batch", "update")
NOT_DIAGNOSED = (SHORTCUT, SHORTCUT_BY_SHAPE, TRANSITION, EMBEDDING)

Say = Callable[[str], None]
Changes = Mapping[str, Any]


def say_nothing(text: str) -> None:
    """Progress callback without output."""


@dataclass(frozen=True)
class Checkpoint:
    """Measurements at one set of weights.

    round: rounds done before; clients: the active ones
    loss: mean loss of these clients' samples at these weights, where there are samples
    snapshot: their disagreement; noise: that of their mini-batches, if asked for
    others: their disagreement by other sources of the gradient, if asked for
    effects: by source and label, what filters leave of disagreement and mean gradient
    sharpness: by label, the mean over clients for steps through a filter, if asked for
    origin: machine and commit that measured it
    cosine: mean cosine between their updates after local training, if asked for
    similarity: by stage, the CKA matrix of their local models, if asked for
    """

    round: int
    clients: list[int]
    loss: float | None
    snapshot: Snapshot
    noise: Noise | None = None
    cosine: float | None = None
    similarity: dict[str, list[list[float | None]]] = field(default_factory=dict)
    others: dict[str, Snapshot] = field(default_factory=dict)
    effects: dict[str, dict[str, Effect]] = field(default_factory=dict)
    sharpness: dict[str, float] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)

    def by(self, source: str) -> Snapshot | None:
        """The disagreement by one source of the gradient; ``None`` where it was not measured."""
        return self.snapshot if source == FULL else self.others.get(source)

    def as_dict(self) -> dict[str, Any]:
        """In a form that JSON can carry."""
        return {
            **vars(self),
            "snapshot": self.snapshot.as_dict(),
            "noise": vars(self.noise) if self.noise else None,
            "others": {source: each.as_dict() for source, each in self.others.items()},
            "effects": {
                source: {label: vars(effect) for label, effect in each.items()}
                for source, each in self.effects.items()
            },
        }

    @staticmethod
    def parse(fields: Mapping[str, Any]) -> Checkpoint:
        """The inverse of :meth:`as_dict`."""
        noise = fields["noise"]
        return Checkpoint(
            **{
                **fields,
                "others": {k: Snapshot.parse(v) for k, v in fields["others"].items()},
                "effects": {
                    source: {label: Effect(**each) for label, each in held.items()}
                    for source, held in fields["effects"].items()
                },
                "snapshot": Snapshot.parse(fields["snapshot"]),
                "noise": Noise(**noise) if noise else None,
            }
        )


@dataclass(frozen=True)
class Request:
    """Quantities to measure at each round.

    changes: fields of :class:`FilterSpec` in which the diagnosed filter differs from the
        configuration's, such as ``{"ratio": 0.1}``
    after: by label, further changes, each a filter whose effect on every source is measured, such
        as ``{"lap": {"method": "lap"}}``
    noise_batches: mini-batches for the noise of a client's gradient; 0 leaves it out
    local: whether to compare the local models of the round: cosines of updates, CKA of features;
        with ``batch``, their updates are a source of the gradient too
    images: test images for the features, drawn by the run's seed
    batch: whether one mini-batch is a source of the gradient besides the full pass
    contenders: the same by settings of a configuration
    sharpness: labels of filters, of those that are tried and ``UNFILTERED``, for whose steps it is
        measured how sharp the loss of a mini-batch is
    """

    changes: Changes = field(default_factory=dict)
    after: Mapping[str, Changes] = field(default_factory=dict)
    noise_batches: int = 8
    local: bool = False
    images: int = IMAGES
    batch: bool = False
    contenders: Mapping[str, Changes] = field(default_factory=dict)
    sharpness: Sequence[str] = ()

    def key(self, config: Config) -> str:
        """Fingerprint of configuration and request: stored rounds of another are not taken."""
        what = json.dumps([config.digest, vars(self), "images drawn by seed"], default=dict)
        return hashlib.sha256(what.encode()).hexdigest()[:16]


USUAL = Request()


def changed(spec: FilterSpec, changes: Changes) -> FilterSpec:
    """The spec with some fields changed.

    >>> changed(FilterSpec(), {"method": "lap"}).method
    'lap'
    """
    try:
        return replace(spec, **changes)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the filter {dict(changes)} cannot be tried: {error}") from error


def tried_plans(
    layers: Sequence[tuple[str, nn.Parameter]], spec: FilterSpec, request: Request
) -> dict[str, Filtering]:
    """The filters that a request tries instead of ``spec``."""
    return {label: FilterPlan(layers, changed(spec, each)) for label, each in request.after.items()}


def _of_client(client: int, number: int, error: Exception) -> ConfigError:
    return ConfigError(f"client {client} in round {number}: {error}")


def weight_tensors(model: nn.Module) -> list[str]:
    """Tensors whose spectra are shown: weights, but no bias, norm, shortcut or embedding."""
    try:
        reasons = select_layers(model).reasons
    except ValueError:  # no convolution: then there is no shortcut either
        reasons = {}
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and parameter.dim() >= 2
        and reasons.get(name) not in NOT_DIAGNOSED
    ]


class Collector:
    """Measures any clients of one federation at any weights."""

    def __init__(
        self, config: Config, dataset: Dataset, partition: Partition, request: Request = USUAL
    ) -> None:
        self.config = config
        self.request = request
        self.partition = partition.clients
        form, arrays = samples.stored(dataset, augment=False, channels_last=config.channels_last)
        self.flat = building.build_model(Blueprint(config, form, building.inputs_of(dataset)))
        arrays = draw_images(arrays, request.images, config.seed)
        self.samples = Samples(form, arrays, machine.device_of(config))
        # a run without a filter is diagnosed for the one it could have
        filtered = config if config.filter != "none" else config.replace(filter="fft")
        plan = filters.filter_plan(self.flat.model, filtered)
        assert plan is not None
        self.filtered = plan.names
        spec = FilterSpec("fft", plan.spec.ratio, order=plan.spec.order)
        self.spec = changed(spec, request.changes)
        self.measured = weight_tensors(self.flat.model)
        # a contender names all settings of its filter
        names = [name for name in FIELDS if name == "ratio" or name.startswith("filter")]
        defaults = Config()
        plain = config.replace(**{name: getattr(defaults, name) for name in names})
        self._named = dict(self.flat.model.named_parameters())
        layers = [(name, self._named[name]) for name in self.filtered]
        self.plans = tried_plans(layers, self.spec, request) | {
            label: tried
            for label, each in request.contenders.items()
            if (tried := filters.filter_plan(self.flat.model, plain.replace(**each)))
        }

    def load(self, weights: Tensor, buffers: Tensor | None = None) -> None:
        """Use these weights, a vector in the order of the model's parameters."""
        self.flat.weights.copy_(weights)
        if buffers is not None:
            self.flat.write_buffers(buffers)
        self.flat.model.eval()

    def _backward(self, indices: Tensor, samples: int) -> float:
        """Add the gradient of these samples' loss, divided by ``samples``; the loss itself too."""
        x, y = self.samples.train_batch(indices)
        loss = F.cross_entropy(self.flat.model(x), y, reduction="sum") / samples
        loss.backward()
        return float(loss.detach())

    def gradient(self, client: int) -> float:
        """Put a client's gradient into ``flat.grads``; its mean loss."""
        held = self.partition[client]
        self.flat.grads.zero_()
        return sum(self._backward(part, len(held)) for part in held.split(PASS_BATCH))

    def _noise(self, client: int, round_number: int) -> float:
        """``sigma_k^2`` around the gradient that is in ``flat.grads``, which is replaced."""
        draw = generator(self.config.seed, "noise", round_number, client)
        full = {"all": self.flat.grads.clone()}

        def drawn() -> Mapping[str, Tensor]:
            self._batch_gradient(self._draw_batch(client, draw))
            return {"all": self.flat.grads}

        return theory.noise(full, (drawn() for _ in range(self.request.noise_batches)))

    def _meters(self) -> tuple[Disagreement, Effects]:
        meter = Disagreement(self.filtered, self.spec, measured=self.measured)
        return meter, Effects(self.plans, self._named, self.filtered)

    def _add(
        self, meters: tuple[Disagreement, Effects], weight: float, client: int, number: int
    ) -> None:
        """Add ``flat.grads`` as the gradient of a client."""
        gradients = {name: self._named[name].grad for name in self.flat.segments}
        try:
            meters[0].add(weight, gradients)  # type: ignore[arg-type]
            meters[1].add(weight)
        except ValueError as error:
            raise _of_client(client, number, error) from error

    def _draw_batch(self, client: int, draw: torch.Generator) -> Tensor:
        """The samples of one mini-batch."""
        held = self.partition[client]
        return held[torch.randperm(len(held), generator=draw)[: self.config.batch_size]]

    def _batch_gradient(self, batch: Tensor) -> None:
        """Put the gradient of one mini-batch into ``flat.grads``."""
        self.flat.grads.zero_()
        self._backward(batch, len(batch))

    def _sharpness(self, batch: Tensor, client: int, number: int) -> dict[str, float]:
        """For steps on one mini-batch, through each filter that was asked for."""
        tried = {UNFILTERED: None, **self.plans}
        plans = {label: tried[label] for label in self.request.sharpness}
        x, y = self.samples.train_batch(batch)
        try:
            # the other ways to compute attention have no second derivative
            with sdpa_kernel(SDPBackend.MATH):
                loss = F.cross_entropy(self.flat.model(x), y)
            return sharpness(self.flat, loss, plans)
        except (ValueError, RuntimeError) as error:  # a model may hold more that has none
            raise _of_client(client, number, error) from error

    def checkpoint(
        self,
        weights: Tensor,
        clients: Sequence[int],
        *,
        round_number: int = 0,
        buffers: Tensor | None = None,
        say: Say = say_nothing,
    ) -> Checkpoint:
        """Gradients of ``clients`` at ``weights``, weighted by their numbers of samples."""
        self.load(weights, buffers)
        meters = {FULL: self._meters()} | ({BATCH: self._meters()} if self.request.batch else {})
        sizes = [len(self.partition[each]) for each in clients]
        losses, sigmas, sharp = 0.0, [], []
        for number, (each, size) in enumerate(zip(clients, sizes, strict=True), start=1):
            say(f"round {round_number}: gradient of client {each}, {number} of {len(clients)}")
            losses += size * self.gradient(each)
            self._add(meters[FULL], size, each, round_number)
            if self.request.noise_batches:
                sigmas.append(self._noise(each, round_number))
            batch = self._draw_batch(
                each, generator(self.config.seed, "one batch", round_number, each)
            )
            if self.request.batch:
                self._batch_gradient(batch)
                self._add(meters[BATCH], size, each, round_number)
            if self.request.sharpness:
                sharp.append(self._sharpness(batch, each, round_number))
        return Checkpoint(
            round=round_number,
            clients=list(clients),
            loss=losses / sum(sizes),
            snapshot=meters[FULL][0].result(),
            noise=theory.combined_noise(sizes, sigmas) if sigmas else None,
            others={name: each.result() for name, (each, _) in meters.items() if name != FULL},
            effects={name: each.result() for name, (_, each) in meters.items() if self.plans},
            sharpness={
                label: statistics.fmean(each[label] for each in sharp)
                for label in self.request.sharpness
            },
        )

    def with_updates(
        self, measured: Checkpoint, start: Tensor, results: Sequence[Tensor], lr: float
    ) -> Checkpoint:
        """The checkpoint with local updates as a source: ``results`` of its clients in order."""
        meters = self._meters()
        for client, result in zip(measured.clients, results, strict=True):
            size = len(self.partition[client])
            steps = self.config.epochs * math.ceil(size / self.config.batch_size)
            self.flat.grads.copy_((start - result) / (lr * steps))
            self._add(meters, size, client, measured.round)
        return replace(
            measured,
            others=measured.others | {UPDATE: meters[0].result()},
            effects=measured.effects | ({UPDATE: meters[1].result()} if self.plans else {}),
        )
