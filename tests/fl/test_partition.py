"""Partitions: what each kind promises, for all data sets and seeds."""

from __future__ import annotations

import time

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from specgrad_fl.data.base import Dataset, Split, build
from specgrad_fl.partition import Partition, make_partition


def labelled(labels: np.ndarray, num_classes: int, **fields: object) -> Dataset:
    """A data set of the smallest images with these training labels."""
    images = np.arange(len(labels), dtype=np.uint8)[:, None, None, None] % 251
    images[0] = 255
    writers = fields.pop("writers", None)
    train = Split(images, labels, writers)
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


def total_variation(partition: Partition, dataset: Dataset) -> float:
    """Mean distance between a client's label distribution and the uniform one."""
    counts = partition.counts(dataset.train_y, dataset.num_classes).double()
    shares = counts / counts.sum(dim=1, keepdim=True)
    return float((shares - 1 / dataset.num_classes).abs().sum(dim=1).mean() / 2)


def test_skew_of_the_two_modes_at_full_size():
    dataset = balanced(10, 5000)
    skew = {}
    for mode in ("refill", "once"):
        began = time.perf_counter()
        parts = [
            make_partition(dataset, kind="dirichlet", clients=100, mode=mode, seed=seed)
            for seed in range(4)
        ]
        assert (time.perf_counter() - began) / 4 < 5
        skew[mode] = np.mean([total_variation(part, dataset) for part in parts])
        used = np.mean([len(set(joined(part))) for part in parts]) / 50_000
        assert used == 1 if mode == "once" else 0.85 < used < 0.98
    assert 0.69 < skew["refill"] < 0.74
    assert 0.63 < skew["once"] < 0.71
    assert skew["once"] < skew["refill"]
