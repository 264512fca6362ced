"""Partitions: what each kind promises, for all data sets and seeds."""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from specgrad_data.dataset import Dataset, Split, build
from specgrad_fl.errors import ConfigError
from specgrad_fl.partition import Partition, label_counts, make_partition


def labelled(labels: np.ndarray, num_classes: int, **fields: object) -> Dataset:
    """A data set of the smallest images with these training labels."""
    images = np.arange(len(labels), dtype=np.uint8)[:, None, None, None] % 251
    images[0] = 255
    given = {name: fields.pop(name) for name in ("writers", "domains", "bases") if name in fields}
    train = Split(images, labels, **given)
    test = Split(images[:1], labels[:1])
    return build("toy", train, test, num_classes=num_classes, **fields)


def balanced(classes: int, per_class: int) -> Dataset:
    return labelled(np.repeat(np.arange(classes), per_class), classes)


def joined(partition: Partition) -> list[int]:
    return torch.cat(partition.clients).tolist()


@st.composite
def divisions(draw: st.DrawFn) -> tuple[Dataset, int]:
    """Any labels, also with classes that never occur, and a number of clients that fits."""
    classes = draw(st.integers(2, 12))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=2, max_size=200))
    clients = draw(st.integers(1, len(labels)))
    return labelled(np.array(labels), classes), clients


@given(
    divisions(),
    st.sampled_from(["refill", "once"]),
    st.floats(1e-3, 100),
    st.integers(0, 2**32),
)
def test_dirichlet_gives_equal_sizes_and_repeats_itself(division, mode, alpha, seed):
    dataset, clients = division
    arguments = {"kind": "dirichlet", "clients": clients, "alpha": alpha, "mode": mode}
    partition = make_partition(dataset, **arguments, seed=seed)
    assert partition.sizes == [len(dataset.train_y) // clients] * clients
    again = make_partition(dataset, **arguments, seed=seed)
    assert all(map(torch.equal, partition.clients, again.clients))
    held = joined(partition)
    assert set(held) <= set(range(len(dataset.train_y)))
    if mode == "once":
        assert len(set(held)) == len(held)


@given(divisions(), st.integers(0, 2**32))
def test_iid_holds_every_sample_at_most_once(division, seed):
    dataset, clients = division
    partition = make_partition(dataset, kind="iid", clients=clients, seed=seed)
    assert partition.sizes == [len(dataset.train_y) // clients] * clients
    assert len(set(joined(partition))) == len(joined(partition))


def test_seeds_differ():
    dataset = balanced(10, 20)
    for kind in ("dirichlet", "iid", "shards"):
        first, second = (make_partition(dataset, kind=kind, clients=10, seed=s) for s in (0, 1))
        assert joined(first) != joined(second)


def test_partition_of_a_seed_is_the_same_everywhere():
    held = make_partition(balanced(3, 4), kind="dirichlet", clients=3, alpha=0.5, seed=7)
    assert [indices.tolist() for indices in held.clients] == [
        [6, 4, 5, 7],
        [4, 5, 4, 6],
        [3, 7, 6, 5],
    ]


def distances(partition: Partition, dataset: Dataset, to: np.ndarray) -> float:
    """Mean total variation between the clients' label shares and the rows of ``to``."""
    counts = label_counts(partition.clients, dataset.train_y, dataset.num_classes).double().numpy()
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(np.abs(shares - to).sum(axis=1).mean() / 2)


@pytest.mark.parametrize(
    ("mode", "to_prior", "to_uniform", "used"),
    [
        ("refill", (0.01, 0.04), (0.69, 0.74), (0.85, 0.98)),
        ("once", (0.08, 0.16), (0.63, 0.71), (1, 1)),
    ],
)
def test_skew_of_the_modes_at_full_size(mode, to_prior, to_uniform, used):
    """100 clients, 50,000 samples, alpha 0.1: the figures of the specification, with a margin."""
    dataset = balanced(10, 5000)
    found = []
    for seed in range(4):
        part = make_partition(dataset, kind="dirichlet", clients=100, mode=mode, seed=seed)
        assert part.sizes == [500] * 100
        priors = np.random.default_rng(seed).dirichlet(np.full(10, 0.1), size=100)
        found.append((
            distances(part, dataset, priors),
            distances(part, dataset, np.full(10, 0.1)),
            len(set(joined(part))) / 50_000,
        ))  # fmt: skip
    mean = np.mean(found, axis=0)
    for value, (low, high) in zip(mean, (to_prior, to_uniform, used), strict=True):
        assert low <= value <= high


def test_refill_hands_out_every_sample_of_a_class_before_the_first_again():
    dataset = labelled(np.array([0] * 5 + [1] * 95), 2)
    for seed in range(10):
        partition = make_partition(dataset, kind="dirichlet", clients=1, alpha=10, seed=seed)
        rare = [index for index in joined(partition) if index < 5]
        assert len(rare) > 10
        for start in range(0, len(rare) - 4, 5):
            assert sorted(rare[start : start + 5]) == [0, 1, 2, 3, 4]
        # popped from the end again: the same order every time
        assert rare[:5] == rare[5:10]


def test_once_falls_back_on_the_stock_where_the_prior_is_spent():
    """At a tiny alpha every client wants one class alone, and most go without it."""
    dataset = balanced(4, 50)
    for seed in range(20):
        arguments = {"kind": "dirichlet", "clients": 10, "alpha": 1e-3, "mode": "once"}
        partition = make_partition(dataset, **arguments, seed=seed)
        assert sorted(joined(partition)) == list(range(200))


def test_remainder_is_dropped():
    dataset = balanced(8, 13)
    for kind in ("dirichlet", "iid"):
        assert make_partition(dataset, kind=kind, clients=10, seed=0).sizes == [10] * 10


@given(divisions(), st.integers(1, 4), st.integers(0, 2**32))
def test_shards_hold_few_classes(division, per_client, seed):
    dataset, clients = division
    samples = len(dataset.train_y)
    arguments = {"kind": "shards", "clients": clients, "shards_per_client": per_client}
    if clients * per_client > samples:
        with pytest.raises(ConfigError, match="choose fewer clients or shards"):
            make_partition(dataset, **arguments, seed=seed)
        return
    partition = make_partition(dataset, **arguments, seed=seed)
    assert partition.sizes == [samples // (clients * per_client) * per_client] * clients
    assert len(set(joined(partition))) == len(joined(partition))


def test_shards_of_two_classes_each():
    dataset = balanced(10, 100)
    partition = make_partition(dataset, kind="shards", clients=50, seed=0)
    classes = (label_counts(partition.clients, dataset.train_y, 10) > 0).sum(dim=1)
    assert set(classes.tolist()) <= {1, 2}
    assert label_counts(partition.clients, dataset.train_y, 10).sum(dim=0).tolist() == [100] * 10


@given(st.lists(st.integers(0, 9), min_size=2, max_size=60), st.integers(0, 2**32))
def test_natural_clients_are_the_writers(writers, seed):
    writers = np.array(writers)
    dataset = labelled(np.zeros(len(writers), np.int64), 1, writers=writers)
    names = np.unique(writers)
    everyone = make_partition(dataset, kind="natural", clients=0, seed=seed)
    assert [set(writers[held.numpy()]) for held in everyone.clients] == [{name} for name in names]
    assert sorted(joined(everyone)) == list(range(len(writers)))
    some = make_partition(dataset, kind="natural", clients=(len(names) + 1) // 2, seed=seed)
    whole = {tuple(held.tolist()) for held in everyone.clients}
    chosen = {tuple(held.tolist()) for held in some.clients}
    assert chosen <= whole
    assert len(chosen) == (len(names) + 1) // 2


def corrupted(bases: int, kinds: int = 15) -> Dataset:
    """As CIFAR-C is loaded: every training base image under every corruption."""
    return labelled(
        np.tile(np.arange(bases) % 10, kinds),
        10,
        domains=np.repeat(np.arange(kinds), bases),
        bases=np.tile(np.arange(bases), kinds),
        domain_names=tuple(f"corruption {kind}" for kind in range(kinds)),
    )


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(3, 60), st.integers(0, 2**32))
def test_feature_shift_gives_two_or_three_corruptions_in_equal_parts(clients, size, seed):
    dataset = corrupted(400)
    partition = make_partition(
        dataset, kind="feature_shift", clients=clients, samples_per_client=size, seed=seed
    )
    assert dataset.domains is not None
    assert dataset.bases is not None
    usage = torch.zeros(15, dtype=torch.int64)
    for held in partition.clients:
        assert len(held) == size
        shares = torch.bincount(dataset.domains[held], minlength=15)
        present = shares[shares > 0]
        assert len(present) in (2, 3)
        assert present.max() - present.min() <= 1
        usage += shares > 0
    assert usage.max() - usage.min() <= 1
    pairs = torch.stack([dataset.domains, dataset.bases], dim=1)[joined(partition)]
    assert len(torch.unique(pairs, dim=0)) == clients * size


def test_feature_shift_is_iid_in_labels_and_uses_both_numbers_of_corruptions():
    dataset = corrupted(8000)
    partition = make_partition(dataset, kind="feature_shift", clients=100, seed=0)
    assert partition.sizes == [500] * 100
    assert distances(partition, dataset, np.full(10, 0.1)) < 0.08
    assert dataset.domains is not None
    numbers = [len(torch.unique(dataset.domains[held])) for held in partition.clients]
    assert 30 < numbers.count(2) < 70


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"kind": "dirichelt"}, "no partition 'dirichelt'; did you mean 'dirichlet'"),
        ({"kind": "dirichlet", "mode": "twice"}, "mode is 'twice'; choose one of refill, once"),
        ({"kind": "dirichlet", "alpha": 0.0}, "alpha is 0.0; choose a positive number"),
        ({"kind": "dirichlet", "alpha": math.nan}, "alpha is nan"),
        ({"kind": "dirichlet", "alpha": math.inf}, "alpha is inf"),
        ({"kind": "iid", "seed": -1}, "seed is -1"),
        ({"kind": "iid", "clients": 0}, "clients is 0; choose a positive"),
        ({"kind": "natural", "clients": -1}, "clients is -1"),
        ({"kind": "iid", "clients": 41}, "clients is 41, more than the 40 training samples"),
        ({"kind": "dirichlet", "clients": 41}, "choose at most 40"),
        ({"kind": "shards", "shards_per_client": 0}, "shards_per_client is 0"),
        ({"kind": "natural"}, "toy does not say who wrote which sample"),
        ({"kind": "feature_shift"}, "toy has no corruptions"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, object], complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        make_partition(balanced(10, 4), **{"clients": 4, "seed": 0, **arguments})


def test_feature_shift_and_natural_that_cannot_be_served():
    for dataset, arguments, complaint in (
        (corrupted(20), {"clients": 100}, "choose fewer clients or less than samples_per_client"),
        (corrupted(20), {"clients": 2, "samples_per_client": 2}, "need at least 3"),
        (corrupted(20, kinds=2), {"clients": 2}, "needs 3 corruptions; toy was loaded with 2"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            make_partition(dataset, kind="feature_shift", seed=0, **arguments)
    dataset = labelled(np.zeros(4, np.int64), 1, writers=np.array([5, 5, 6, 6]))
    with pytest.raises(ConfigError, match="clients is 3, and toy has 2 writers"):
        make_partition(dataset, kind="natural", clients=3, seed=0)


def partitions(dataset: Dataset) -> list[Partition]:
    return [
        make_partition(dataset, kind="dirichlet", clients=5, alpha=0.3, mode="once", seed=3),
        make_partition(dataset, kind="iid", clients=7, seed=2**40),
        make_partition(dataset, kind="natural", clients=0, seed=0),
    ]


def test_what_is_saved_is_loaded(tmp_path: Path):
    dataset = labelled(np.arange(40) % 4, 4, writers=np.arange(40) // 9)
    for partition in partitions(dataset):
        path = tmp_path / "partition.npz"
        partition.save(path)
        loaded = Partition.load(path)
        assert [path.name for path in tmp_path.iterdir()] == ["partition.npz"]
        assert len(loaded.clients) == len(partition.clients)
        assert all(map(torch.equal, loaded.clients, partition.clients))
        for field in ("kind", "mode", "seed", "fingerprint"):
            assert getattr(loaded, field) == getattr(partition, field)
        assert loaded.alpha == partition.alpha or math.isnan(loaded.alpha + partition.alpha)
        loaded.check(dataset)


def test_damaged_partitions_are_refused(tmp_path: Path):
    path = tmp_path / "partition.npz"
    with pytest.raises(ConfigError, match="there is no partition at"):
        Partition.load(path)
    partitions(labelled(np.arange(40) % 4, 4, writers=np.arange(40) // 9))[0].save(path)
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ConfigError, match="not a saved partition or is damaged"):
            Partition.load(path)
    arrays = dict(np.load(io.BytesIO(whole), allow_pickle=False))
    for change in (
        {"sizes": np.array([1, 2])},
        {"about": np.array("{}")},
        {"about": np.array("no json")},
        {"indices": np.array([0.5] * 40)},
        {"about": np.array([{}], dtype=object)},
    ):
        np.savez(path, **{**arrays, **change})
        with pytest.raises(ConfigError, match="not a saved partition or is damaged"):
            Partition.load(path)


def test_partition_of_other_data_is_refused():
    dataset = balanced(4, 10)
    partition = make_partition(dataset, kind="iid", clients=4, seed=0)
    partition.check(dataset)
    with pytest.raises(ConfigError, match="the partition was made for data with fingerprint"):
        partition.check(balanced(4, 11))
    anonymous = dataclasses.replace(partition, fingerprint="")
    with pytest.raises(ConfigError, match="training sample 39, and toy has 36"):
        anonymous.check(balanced(4, 9))


@pytest.mark.pictures
def test_counts_and_heat_map(tmp_path: Path):
    dataset = balanced(3, 4)
    partition = Partition([torch.tensor([0, 1, 4]), torch.tensor([8, 11])], "iid", "", math.nan, 0)
    counts = label_counts(partition.clients, dataset.train_y, 3)
    assert counts.tolist() == [[2, 1, 0], [0, 0, 2]]
    partition.heatmap(tmp_path / "map.png", dataset.train_y, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["map.png"]
    picture = Image.open(tmp_path / "map.png")
    assert picture.format == "PNG"
    assert len(picture.convert("RGB").getcolors(2**24)) > 3
