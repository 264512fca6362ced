"""The result of every loader, and the checks that every data set passes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgrad_data.errors import DataError
from specgrad_data.files import Array

Places = NDArray[np.int64]
# mean and standard deviation per channel, of pixels from 0 to 1
Moments = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set as a whole, in memory.

    train_x, test_x: ``uint8 [N, C, H, W]`` images, or ``int64 [N, L]`` token ids (0 is padding)
    train_y, test_y: ``int64 [N]`` in ``0 .. num_classes - 1``
    mean, std: per channel, of ``x / 255``; ``()`` for text
    augment_pad: zero padding of the random crop; 0 stands for no crop
    flip: whether mirrored images are as good as the originals
    writers: ``int64 [N]``, the natural client of each training sample
    fingerprint: short SHA-256 over all tensors
    vocabulary: number of token ids of a text data set, 0 for images
    domains, bases: ``int64 [N]``, for feature shift: the corruption of each training sample and
        the base image it was made from
    domain_names: what the numbers in ``domains`` and ``test_domains`` stand for
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment_pad: int
    flip: bool
    writers: Tensor | None
    fingerprint: str
    vocabulary: int = 0
    domains: Tensor | None = None
    bases: Tensor | None = None
    test_domains: Tensor | None = None
    domain_names: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        """True where samples are token ids rather than pixels."""
        return self.train_x.dtype == torch.int64

    def describe(self) -> str:
        """Sizes and shape of the data in one clause."""
        what = f"texts of {self.train_x.shape[1]} words"
        if not self.is_text:
            channels, height, width = self.train_x.shape[1:]
            plural = "s" if channels > 1 else ""
            what = f"images of {height} x {width} pixels in {channels} channel{plural}"
        return (
            f"{self.name}, {len(self.train_y)} training and {len(self.test_y)} test {what}, "
            f"{self.num_classes} classes"
        )


@dataclass(frozen=True, eq=False)
class Split:
    """Samples as NumPy arrays, before they are checked; the names are those of a data set."""

    x: Array
    y: Array
    writers: Array | None = None
    domains: Array | None = None
    bases: Array | None = None

    def take(self, places: Places) -> Split:
        """The samples at these places, in this order."""
        arrays = {name: array for name, array in vars(self).items() if array is not None}
        return Split(**{name: array[places] for name, array in arrays.items()})


def channel_statistics(images: Tensor) -> Moments:
    """Mean and standard deviation per channel of ``images / 255``, exact for ``uint8``.

    >>> channel_statistics(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    levels = torch.arange(256)
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten(), minlength=256)
        count, total = int(counts.sum()), int((counts * levels).sum())
        squares = int((counts * levels * levels).sum())
        # in integers: n * sum(x^2) - sum(x)^2 loses nothing to cancellation
        means.append(total / count / 255)
        deviations.append((count * squares - total * total) ** 0.5 / count / 255)
    return tuple(means), tuple(deviations)


def _check(
    split: Split, where: str, shape: tuple[int, ...], vocabulary: int, num_classes: int
) -> None:
    """Refuse samples that are not as :class:`Dataset` describes them, and labels out of range."""
    x, y = split.x, split.y
    if vocabulary:
        if x.ndim != 2 or 0 in x.shape or x.dtype.kind not in "iu":
            raise DataError(
                f"{where} has shape {x.shape} and dtype {x.dtype}; token ids must be integers of "
                "shape [N, L] with at least one row"
            )
        _check_range(x, f"token ids in {where}", vocabulary, "count the vocabulary again")
    elif x.dtype != np.uint8:
        raise DataError(
            f"{where} has dtype {x.dtype}; images must be uint8 with values 0 to 255, so scale "
            "them and store them again"
        )
    elif x.ndim != 4 or 0 in x.shape:
        raise DataError(
            f"{where} has shape {x.shape}; expected [N, C, H, W] with at least one image"
        )
    elif x.shape[1:] != shape:
        raise DataError(
            f"{where} holds images of shape {x.shape[1:]}, where {shape} was expected; all images "
            "of a data set must have the same shape"
        )
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise DataError(
            f"the label array of {where} has shape {y.shape} and dtype {y.dtype}; expected one "
            f"integer label for each of the {len(x)} samples"
        )
    conclusion = "the file belongs to another data set or is damaged"
    _check_range(y, f"labels in {where}", num_classes, conclusion)


def _check_range(numbers: Array, what: str, end: int, conclusion: str) -> None:
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= end:
        raise DataError(f"{what} go from {low} to {high}; expected 0 to {end - 1}, so {conclusion}")


def _fingerprint(name: str, tensors: Iterable[Tensor | None]) -> str:
    digest = hashlib.sha256(name.encode())
    for tensor in tensors:
        if tensor is None:
            digest.update(b"none")
        else:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.numpy().data)
    return digest.hexdigest()[:16]


def _tensor(array: Array | None) -> Tensor | None:
    """As a tensor that may be written to; integers other than pixels become ``int64``."""
    if array is None:
        return None
    kept = np.uint8 if array.ndim == 4 else np.int64
    return torch.from_numpy(np.require(array, kept, ["C_CONTIGUOUS", "WRITEABLE"]))


def build(
    name: str,
    train: Split,
    test: Split,
    *,
    num_classes: int,
    shape: tuple[int, ...] | None = None,
    normalise: Moments | None = None,
    augment_pad: int = 0,
    flip: bool = False,
    vocabulary: int = 0,
    domain_names: tuple[str, ...] = (),
) -> Dataset:
    """Check two splits and make them a :class:`Dataset`.

    ``shape`` is what each image must have, by default that of the first; ``normalise`` the mean
    and deviation per channel, by default those of the training images.
    """
    for part, split in (("train", train), ("test", test)):
        where = f"the {part} part of {name}"
        _check(split, where, shape or train.x.shape[1:], vocabulary, num_classes)
    if train.writers is not None and train.writers.shape != (len(train.x),):
        raise DataError(
            f"{name} names {len(train.writers)} writers for {len(train.x)} training samples; "
            "the two files do not belong together"
        )
    arrays = {
        "train_x": train.x,
        "train_y": train.y,
        "test_x": test.x,
        "test_y": test.y,
        "writers": train.writers,
        "domains": train.domains,
        "bases": train.bases,
        "test_domains": test.domains,
    }
    tensors: dict[str, Any] = {key: _tensor(array) for key, array in arrays.items()}
    mean, std = ((), ()) if vocabulary else normalise or channel_statistics(tensors["train_x"])
    if std and min(std) <= 0:
        raise DataError(
            f"the training images of {name} are constant in one channel, which cannot be "
            "normalised; leave that channel out"
        )
    return Dataset(
        name=name,
        **tensors,
        num_classes=num_classes,
        mean=mean,
        std=std,
        augment_pad=augment_pad,
        flip=flip,
        fingerprint=_fingerprint(name, tensors.values()),
        vocabulary=vocabulary,
        domain_names=domain_names,
    )


def stratified_split(labels: Array, test_fraction: float, seed: int) -> tuple[Places, Places]:
    """Places of the training and of the test samples, each class divided alike.

    >>> train, test = stratified_split(np.array([0, 0, 0, 0, 1, 1, 1, 1]), 0.25, seed=0)
    >>> len(train), len(test)
    (6, 2)
    """
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction is {test_fraction}; choose a number between 0 and 1")
    if len(labels) == 0:
        raise DataError("there are no samples to divide into training and test; add some")
    rng = np.random.default_rng(seed)
    train, test = [], []
    for label in np.unique(labels):
        places = rng.permutation(np.flatnonzero(labels == label))
        cut = round(test_fraction * len(places))
        test.append(places[:cut])
        train.append(places[cut:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def shifted_splits(
    images: Sequence[Array], labels: Array, test_fraction: float, seed: int
) -> Iterator[Split]:
    """The base images, divided, under every corruption; ``images`` are all of them under each."""
    kinds = len(images)
    for places in stratified_split(labels, test_fraction, seed):
        x = np.empty((kinds, len(places), *images[0].shape[1:]), np.uint8)
        for filled, whole in zip(x, images, strict=True):
            filled[:] = whole[places]
        yield Split(
            x.reshape(-1, *x.shape[2:]),
            np.tile(labels[places], kinds),
            domains=np.repeat(np.arange(kinds), len(places)),
            bases=np.tile(places, kinds),
        )
