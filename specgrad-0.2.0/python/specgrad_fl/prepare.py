"""Check a configuration against its data, and resolve what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import specgrad_data
import torch
from specgrad_data import DataError, Dataset, own

from specgrad_fl import machine, methods, models, stack_trial
from specgrad_fl.building import inputs_of
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError
from specgrad_fl.filters import filter_plan
from specgrad_fl.own_code import imported
from specgrad_fl.partition import Partition, make_partition
from specgrad_fl.seeding import derive
from specgrad_fl.vectors import FlatModel

# a forward pass alone, of the cost of forward and backward
EVALUATION_COST = 0.3
EVALUATION_SHARE = 0.05


def prepare(
    config: Config, announce: Callable[[str], None] = lambda sentence: None
) -> tuple[Config, Dataset, Partition]:
    """Check a configuration; return it resolved, with its data and its partition."""
    machine.device_of(config)
    machine.check_amp(config)
    methods.resolve_options(config.method, config.options)
    _check_optimizer(config)
    dataset = load_data(config)
    partition = divide(config, dataset)
    resolved = resolve(config, dataset, partition)
    check_model(config, dataset)
    if config.stack != "1":
        resolved = stack_trial.resolve(resolved, dataset, partition, announce)
    return resolved, dataset, partition


def _check_optimizer(config: Config) -> None:
    """Reject momentum and Adam for methods that recover gradients from weight differences."""
    plain = config.optimizer == "sgd" and not config.momentum
    if not plain and methods.method_class(config.method).needs_plain_steps:
        chosen = "optimizer 'adam'" if config.optimizer == "adam" else f"momentum {config.momentum}"
        raise ConfigError(
            f"{config.method} takes the mean of a client's gradients from its steps, which "
            f"{chosen} changes; choose optimizer 'sgd' with momentum 0, or another method"
        )


def load_data(config: Config) -> Dataset:
    """The configured data set."""
    try:
        return _load(config)
    except DataError as error:
        raise ConfigError(str(error), error.trace) from error


def _load(config: Config) -> Dataset:
    form, colon, _ = config.dataset.partition(":")
    if colon and form not in specgrad_data.OWN_FORMS:
        loader = imported("dataset", config.dataset)
        return own.load_by(loader, config.dataset, config.data_options)
    root = Path(config.data_root) if config.data_root else None
    return specgrad_data.load(config.dataset, root, **config.data_options)


def divide(config: Config, dataset: Dataset) -> Partition:
    """The configured partition."""
    whole = make_partition(
        dataset,
        kind=config.partition,
        clients=config.clients,
        alpha=config.alpha,
        mode=config.partition_mode,
        seed=derive(config.seed, "partition"),
        shards_per_client=config.shards_per_client,
        samples_per_client=config.samples_per_client,
    )
    if not config.validation:
        return whole
    return whole.hold_out(config.validation, derive(config.seed, "validation"))


def resolve(config: Config, dataset: Dataset, partition: Partition) -> Config:
    """Fill in the numbers that follow from the data: clients and evaluation rounds."""
    clients = len(partition.clients)
    if config.active > clients:
        raise ConfigError(
            f"active is {config.active}, and there are {clients} clients; choose at most {clients}"
        )
    epochs = sum(config.fewest_and_most_epochs) / 2
    trained = config.active * epochs * sum(partition.sizes) / clients
    scored = sum(map(len, partition.held_out)) or len(dataset.test_y)
    cost = EVALUATION_COST * scored / trained
    every = config.eval_every or min(config.rounds, max(1, math.ceil(cost / EVALUATION_SHARE)))
    tail = config.eval_tail
    if tail < 0:
        affordable = EVALUATION_SHARE * config.rounds / cost
        tail = 10 if affordable >= 10 else 1
    return config.replace(clients=clients, eval_every=every, eval_tail=tail)


def check_model(config: Config, dataset: Dataset) -> None:
    """Refuse a model that does not fit the data, or a filter that does not fit the model."""
    inputs = inputs_of(dataset)
    device = machine.device_of(config)  # a filter may serve there and nowhere else
    model = models.build(config.model, inputs, config.model_options).eval().to(device)
    filter_plan(model, config)
    sample = dataset.test_x[:2].to(device)
    expected = (len(sample), inputs.num_classes)
    try:
        with torch.no_grad():
            logits = model(sample if dataset.is_text else sample.float() / 255)
    except Exception as error:  # whatever a user's model raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"model {config.model!r} does not take the samples of {dataset.name}, of shape "
            f"{tuple(sample.shape[1:])}: {reason}"
        ) from error
    found = getattr(logits, "shape", None)
    if found is None or tuple(found) != expected:
        what = type(logits).__name__ if found is None else f"shape {tuple(found)}"
        raise ConfigError(
            f"model {config.model!r} returns {what} for {len(sample)} samples of {dataset.name}; "
            f"expected one tensor of shape {expected}"
        )
    FlatModel(model, device)  # refuses parameters that it cannot hold
