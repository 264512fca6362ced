"""Divide the training samples over clients.

Every partition is a function of the data set, its arguments and one seed; NumPy's PCG64 makes
it the same on every platform.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from specgrad_data.dataset import Dataset
from torch import Tensor

from specgrad_fl.errors import ConfigError, suggest
from specgrad_fl.storage import replacing

Indices = NDArray[np.int64]
Priors = NDArray[np.float64]
KINDS = ("dirichlet", "iid", "shards", "natural", "feature_shift")
MODES = ("refill", "once")
# what a saved partition tells besides its arrays
_ABOUT = ("kind", "mode", "alpha", "seed", "fingerprint")
# below this a client's prior says nothing about the classes that are left
NO_MASS = 1e-12


@dataclass(frozen=True, eq=False)
class Partition:
    """Which training samples each client holds.

    clients: one ``int64`` tensor of indices per client
    mode: what the Dirichlet partition does with an exhausted class; ``""`` for other kinds
    alpha: concentration of the Dirichlet prior; ``nan`` for other kinds
    fingerprint: that of the data set that was divided
    held_out: samples of each client that nobody trains on; empty where none were asked for
    """

    clients: list[Tensor]
    kind: str
    mode: str
    alpha: float
    seed: int
    fingerprint: str = ""
    held_out: list[Tensor] = field(default_factory=list)

    @property
    def sizes(self) -> list[int]:
        """Samples per client."""
        return [len(indices) for indices in self.clients]

    def arrays(self) -> dict[str, Tensor]:
        """Tensors for a file or another process."""
        found = {"indices": torch.cat(self.clients), "sizes": torch.tensor(self.sizes)}
        if self.held_out:
            found["held_out"] = torch.cat(self.held_out)
            found["held_out_sizes"] = torch.tensor(list(map(len, self.held_out)))
        return found

    @property
    def digest(self) -> str:
        """SHA-256 of the clients' samples."""
        found = hashlib.sha256()
        for name, tensor in self.arrays().items():
            found.update(name.encode())
            found.update(tensor.numpy().data)
        return found.hexdigest()

    def hold_out(self, share: float, seed: int) -> Partition:
        """Keep a share of every client's samples from training.

        A sample that several clients hold is left out by all of them once one holds it out.
        """
        rng = np.random.default_rng(seed)
        held = [
            np.sort(rng.permutation(np.unique(samples.numpy()))[: round(share * len(samples))])
            for samples in self.clients
        ]
        away = torch.from_numpy(np.unique(np.concatenate(held)))
        if not len(away):
            raise ConfigError(
                f"validation is {share}, which is less than one sample of the largest client, who "
                f"has {max(self.sizes)}; choose more"
            )
        kept = [samples[~torch.isin(samples, away)] for samples in self.clients]
        for client, samples in enumerate(kept):
            if not len(samples):
                raise ConfigError(
                    f"validation {share} leaves client {client} no sample to train on; choose less"
                )
        return replace(self, clients=kept, held_out=list(map(torch.from_numpy, held)))

    def check(self, dataset: Dataset) -> None:
        """Refuse a data set other than the one that was divided."""
        if self.fingerprint and self.fingerprint != dataset.fingerprint:
            raise ConfigError(
                f"the partition was made for data with fingerprint {self.fingerprint}, and "
                f"{dataset.name} has {dataset.fingerprint}; use the data of the first run or "
                "make a new partition"
            )
        highest = max(int(held.max()) for held in self.clients + self.held_out if len(held))
        if highest >= len(dataset.train_y):
            raise ConfigError(
                f"the partition names training sample {highest}, and {dataset.name} has "
                f"{len(dataset.train_y)}; make a new partition"
            )

    def save(self, path: Path) -> None:
        """Write an npz file without pickled objects; the file appears whole or not at all."""
        about = {name: getattr(self, name) for name in _ABOUT}
        if math.isnan(self.alpha):
            about["alpha"] = None
        with replacing(Path(path)) as temporary, open(temporary, "wb") as file:
            arrays = {name: tensor.numpy() for name, tensor in self.arrays().items()}
            np.savez(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Partition:
        """Read what :meth:`save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                arrays = {
                    name: torch.from_numpy(file[name].astype(np.int64, casting="safe"))
                    for name in file.files
                    if name != "about"
                }
            if about["alpha"] is None:
                about["alpha"] = math.nan
            held = split(arrays, "held_out") if "held_out" in arrays else []
            return cls(clients=split(arrays), held_out=held, **about)
        except FileNotFoundError as error:
            raise ConfigError(f"there is no partition at {path}; make one first") from error
        except (OSError, EOFError, KeyError, TypeError, ValueError, RuntimeError,
                zipfile.BadZipFile) as error:  # fmt: skip
            raise ConfigError(
                f"{path} is not a saved partition or is damaged ({error}); make a new one"
            ) from error

    def heatmap(self, path: Path, labels: Tensor, num_classes: int) -> None:
        """Draw samples per client and class as a PNG."""
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        counts = label_counts(self.clients, labels, num_classes).T.numpy()
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        image = axes.imshow(counts, aspect="auto", cmap="viridis", interpolation="nearest")
        settings = [self.kind, self.mode]
        if not math.isnan(self.alpha):
            settings.insert(1, f"alpha {self.alpha:g}")
        axes.set(xlabel="client", ylabel="class", title=", ".join(s for s in settings if s))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        figure.colorbar(image, label="training samples")
        with replacing(Path(path)) as temporary:
            figure.savefig(temporary, format="png", dpi=120)


def split(arrays: dict[str, Tensor], what: str = "indices") -> list[Tensor]:
    """The sample indices of each client in :meth:`Partition.arrays`."""
    sizes = arrays["sizes" if what == "indices" else f"{what}_sizes"]
    return list(arrays[what].split(sizes.tolist()))


def label_counts(clients: list[Tensor], labels: Tensor, num_classes: int) -> Tensor:
    """``int64 [clients, num_classes]``: how many samples of each class a client holds."""
    sizes = torch.tensor([len(held) for held in clients])
    owners = torch.arange(len(clients)).repeat_interleave(sizes)
    places = owners * num_classes + labels[torch.cat(clients)]
    return torch.bincount(places, minlength=len(clients) * num_classes).view(-1, num_classes)


def make_partition(
    dataset: Dataset,
    *,
    kind: str,
    clients: int,
    alpha: float = 0.1,
    mode: str = "refill",
    seed: int,
    shards_per_client: int = 2,
    samples_per_client: int = 500,
) -> Partition:
    """Divide the training samples of ``dataset`` over ``clients``.

    kind:
        ``dirichlet``: equal sizes, class shares drawn from a Dirichlet prior of ``alpha``;
        ``mode="refill"`` reuses samples when a class runs out, so that some are held twice and
        others by nobody; ``mode="once"`` holds every sample at most once.
        ``iid``: equal sizes, at random.
        ``shards``: samples sorted by class and cut in equal shards, ``shards_per_client`` each.
        ``natural``: one client per writer; with fewer clients than writers some are drawn,
        0 takes all.
        ``feature_shift``: 2 or 3 corruptions per client, ``samples_per_client`` samples.

    Equal sizes drop the remainder of the division.

    >>> from specgrad_data import load
    >>> partition = make_partition(load("digits"), kind="dirichlet", clients=10, seed=0)
    >>> set(partition.sizes)
    {143}
    """
    if kind not in KINDS:
        raise ConfigError(f"there is no partition {kind!r}; {suggest(kind, KINDS)}")
    fewest = 0 if kind == "natural" else 1
    for usable, complaint in (
        (mode in MODES, f"mode is {mode!r}; choose one of {', '.join(MODES)}"),
        (0 < alpha < math.inf, f"alpha is {alpha}; choose a positive number such as 0.1"),
        (seed >= 0, f"seed is {seed}; choose 0 or a positive whole number"),
        (clients >= fewest, f"clients is {clients}; choose a positive whole number"),
    ):
        if not usable:
            raise ConfigError(complaint)
    rng = np.random.default_rng(seed)
    makers: dict[str, Callable[[], list[Indices]]] = {
        "dirichlet": lambda: _dirichlet(dataset, clients, alpha, mode, rng),
        "iid": lambda: _iid(dataset, clients, rng),
        "shards": lambda: _shards(dataset, clients, shards_per_client, rng),
        "natural": lambda: _natural(dataset, clients, rng),
        "feature_shift": lambda: _feature_shift(dataset, clients, samples_per_client, rng),
    }
    held = makers[kind]()
    dirichlet = kind == "dirichlet"
    return Partition(
        clients=[torch.from_numpy(indices) for indices in held],
        kind=kind,
        mode=mode if dirichlet else "",
        alpha=alpha if dirichlet else math.nan,
        seed=seed,
        fingerprint=dataset.fingerprint,
    )


def _equal_size(samples: int, clients: int) -> int:
    if clients > samples:
        raise ConfigError(
            f"clients is {clients}, more than the {samples} training samples, so that some would "
            f"be empty; choose at most {samples}"
        )
    return samples // clients


def _dirichlet(
    dataset: Dataset, clients: int, alpha: float, mode: str, rng: Generator
) -> list[Indices]:
    labels = dataset.train_y.numpy()
    size = _equal_size(len(labels), clients)
    priors = rng.dirichlet(np.full(dataset.num_classes, alpha), size=clients)
    pools = [
        rng.permutation(np.flatnonzero(labels == c)).tolist() for c in range(dataset.num_classes)
    ]
    slots = rng.permutation(np.repeat(np.arange(clients), size))
    draw = _refilled if mode == "refill" else _once
    samples = np.fromiter(draw(slots.tolist(), priors, pools, rng), np.int64, len(slots))
    return list(samples[np.argsort(slots, kind="stable")].reshape(clients, size))


def _cumulative(weights: Priors) -> list[float]:
    """Upper ends of the intervals of ``[0, 1)`` that stand for the classes."""
    ends = np.cumsum(weights / weights.sum())
    # rounding may leave the last end below a number that is drawn
    ends[-1] = 1.0
    return ends.tolist()


def _refilled(
    slots: list[int], priors: Priors, pools: list[list[int]], rng: Generator
) -> Iterator[int]:
    """A sample of the client's prior for each slot; an empty class is refilled."""
    # a class without any sample can never be refilled
    classes = [c for c, pool in enumerate(pools) if pool]
    masses = (prior[classes] for prior in priors)
    ends = [_cumulative(m if m.sum() >= NO_MASS else np.ones_like(m)) for m in masses]
    left = [len(pool) for pool in pools]
    for client in slots:
        while True:
            label = classes[bisect_right(ends[client], rng.random())]
            if left[label]:
                break
            left[label] = len(pools[label])
        left[label] -= 1
        yield pools[label][left[label]]


def _once(
    slots: list[int], priors: Priors, pools: list[list[int]], rng: Generator
) -> Iterator[int]:
    """A sample of the client's prior, over the classes that still have one, for each slot."""
    ran_out = True
    for client in slots:
        if ran_out:  # which changes every client's draw
            stocked = [c for c, pool in enumerate(pools) if pool]
            ends = [_cumulative(m) if m.sum() >= NO_MASS else None for m in priors[:, stocked]]
        stock = ends[client] or _cumulative(np.array([float(len(pools[c])) for c in stocked]))
        pool = pools[stocked[bisect_right(stock, rng.random())]]
        yield pool.pop()
        ran_out = not pool


def _iid(dataset: Dataset, clients: int, rng: Generator) -> list[Indices]:
    samples = len(dataset.train_y)
    size = _equal_size(samples, clients)
    return list(rng.permutation(samples)[: size * clients].reshape(clients, size))


def _shards(dataset: Dataset, clients: int, per_client: int, rng: Generator) -> list[Indices]:
    if per_client < 1:
        raise ConfigError(f"shards_per_client is {per_client}; choose 1 or more")
    labels = dataset.train_y.numpy()
    shards = clients * per_client
    size = len(labels) // shards
    if size == 0:
        raise ConfigError(
            f"{clients} clients with {per_client} shards each need {shards} training samples, and "
            f"{dataset.name} has {len(labels)}; choose fewer clients or shards"
        )
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = by_class[: shards * size].reshape(shards, size)
    owners = rng.permutation(shards).reshape(clients, per_client)
    return [pieces[owned].reshape(-1) for owned in owners]


def _natural(dataset: Dataset, clients: int, rng: Generator) -> list[Indices]:
    if dataset.writers is None:
        raise ConfigError(
            f"{dataset.name} does not say who wrote which sample; choose another partition, such "
            "as dirichlet, or a data set with writers, such as mnist_by_writer"
        )
    writers = dataset.writers.numpy()
    names, sizes = np.unique(writers, return_counts=True)
    if clients > len(names):
        raise ConfigError(
            f"clients is {clients}, and {dataset.name} has {len(names)} writers; choose at most "
            f"{len(names)}, or 0 for all"
        )
    by_writer = np.split(np.argsort(writers, kind="stable"), np.cumsum(sizes)[:-1])
    if clients == 0:
        return by_writer
    drawn = np.sort(rng.choice(len(names), size=clients, replace=False))
    return [by_writer[writer] for writer in drawn]


def _feature_shift(dataset: Dataset, clients: int, size: int, rng: Generator) -> list[Indices]:
    """Two or three corruptions per client; no image of a corruption is held by two clients."""
    if dataset.domains is None:
        raise ConfigError(
            f"{dataset.name} has no corruptions to tell clients apart; choose cifar10_c or "
            "cifar100_c, or another partition"
        )
    domains = dataset.domains.numpy()
    count = len(dataset.domain_names)
    if count < 3:
        raise ConfigError(
            f"feature_shift needs 3 corruptions; {dataset.name} was loaded with {count}"
        )
    if size < 3:
        raise ConfigError(f"samples_per_client is {size}; three corruptions need at least 3")
    pools = [rng.permutation(np.flatnonzero(domains == d)) for d in range(count)]
    usage = np.zeros(count, dtype=np.int64)
    held = []
    for client in range(clients):
        # least used first, ties at random
        order = np.lexsort((rng.random(count), usage))
        chosen = order[: rng.integers(2, 4)]
        usage[chosen] += 1
        parts = []
        for place, domain in enumerate(chosen):
            share = size // len(chosen) + (place < size % len(chosen))
            if share > len(pools[domain]):
                raise ConfigError(
                    f"client {client} needs {share} images of {dataset.domain_names[domain]} and "
                    f"{len(pools[domain])} are left; choose fewer clients or less than "
                    f"samples_per_client={size}"
                )
            part, pools[domain] = np.split(pools[domain], [share])
            parts.append(part)
        held.append(np.concatenate(parts))
    return held
