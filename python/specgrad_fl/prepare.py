"""From a configuration to its data, its partition and its resolved settings."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from specgrad_fl import assembly, data, methods, models
from specgrad_fl.config import Config
from specgrad_fl.data import Dataset
from specgrad_fl.errors import ConfigError
from specgrad_fl.filters import filter_plan
from specgrad_fl.flat import FlatModel
from specgrad_fl.partition import Partition, make_partition
from specgrad_fl.seeding import derive

# a forward pass alone, of the cost of forward and backward
EVALUATION_COST = 0.3
EVALUATION_SHARE = 0.05


def prepare(config: Config) -> tuple[Config, Dataset, Partition]:
    """Refuse what cannot be run; else the resolved configuration, its data and its partition."""
    assembly.device_of(config)
    assembly.check_amp(config)
    methods.resolve_options(config.method, config.options)
    _check_optimizer(config)
    dataset = load_data(config)
    partition = divide(config, dataset)
    resolved = resolve(config, dataset, partition)
    check_model(config, dataset)
    return resolved, dataset, partition


def _check_optimizer(config: Config) -> None:
    """Refuse steps from which a method could not tell the gradients they were made of."""
    plain = config.optimizer == "sgd" and not config.momentum
    if not plain and methods.method_class(config.method).needs_plain_steps:
        chosen = "optimizer 'adam'" if config.optimizer == "adam" else f"momentum {config.momentum}"
        raise ConfigError(
            f"{config.method} takes the mean of a client's gradients from its steps, which "
            f"{chosen} changes; choose optimizer 'sgd' with momentum 0, or another method"
        )


def load_data(config: Config) -> Dataset:
    """The configured data set."""
    root = Path(config.data_root) if config.data_root else None
    return data.load(config.dataset, root, **config.data_options)


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
    """Put numbers in place of what is chosen from the data: clients and evaluation rounds."""
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


def inputs_of(dataset: Dataset) -> models.Inputs:
    """What the model must know about the data."""
    if dataset.is_text:
        return models.Inputs(dataset.num_classes, vocabulary=dataset.vocabulary)
    _, channels, height, _ = dataset.train_x.shape
    return models.Inputs(dataset.num_classes, channels, height)


def check_model(config: Config, dataset: Dataset) -> None:
    """Refuse a model that does not fit the data, or a filter that does not fit the model."""
    inputs = inputs_of(dataset)
    device = assembly.device_of(config)  # a filter may serve there and nowhere else
    model = models.build(config.model, inputs, config.model_options).eval().to(device)
    filter_plan(model, config)
    sample = dataset.test_x[:2].to(device)
    expected = (len(sample), inputs.num_classes)
    try:
        with torch.no_grad():
            logits = model(sample if dataset.is_text else sample.float() / 255)
    except Exception as error:  # whatever a model of one's own raises
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
