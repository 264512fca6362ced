"""FEMNIST: the JSON files that LEAF's scripts write, or hub parquet; one client per writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specgrad_data import parquet
from specgrad_data.cache import cached
from specgrad_data.dataset import Dataset, Split, build
from specgrad_data.errors import DataError
from specgrad_data.files import damaged, missing, number

NAME = "femnist"
NUM_CLASSES = 62
SHAPE = (1, 28, 28)
TEST_FRACTION = 0.1


def load(folder: Path, fraction: float = 1.0, seed: int = 0) -> Dataset:
    """Handwritten characters: 0-9 digits, 10-35 capitals, 36-61 small letters.

    fraction: writers are drawn until they hold this share of all samples; 0.05 of the whole set
        is LEAF's non-IID sample
    seed: of that draw and of the division of each writer's samples into 90 % training and 10 %
        test
    """
    if not 0 < fraction <= 1:
        raise DataError(f"fraction is {fraction}; choose a number above 0 and up to 1")
    rng = np.random.default_rng(seed)
    train, test = _divide(_draw_writers(_read(folder), fraction, rng), rng)
    return build(
        NAME,
        train,
        test,
        num_classes=NUM_CLASSES,
        shape=SHAPE,
        normalise=((0.5,), (0.5,)),
    )


def _read(folder: Path) -> Split:
    """All samples with their writers, before they are divided."""
    files = sorted(folder.glob("*.json")) or sorted((folder / "all_data").glob("*.json"))
    if files:
        whole, _ = cached(NAME, files, lambda: _undivided(_read_leaf(files)))
        return whole
    files = parquet.find_parquet(folder, "train")
    if files:
        columns = ("image", "character", "writer_id")
        whole, _ = cached(
            NAME, files, lambda: _undivided(parquet.read_images(files, *columns, mode="L"))
        )
        return whole
    raise missing(NAME, folder)


def _undivided(whole: Split) -> tuple[Split, Split]:
    """In the form of the cache, which keeps a training and a test split."""
    return whole, Split(whole.x[:0], whole.y[:0])


def _read_leaf(files: list[Path]) -> Split:
    parts: list[Split] = []
    for path in files:
        parts += _read_leaf_file(path)
    if not parts:
        raise damaged(files[0], "no writer is in it")
    assert all(part.writers is not None for part in parts)
    return Split(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        number(np.concatenate([part.writers for part in parts if part.writers is not None])),
    )


def _read_leaf_file(path: Path) -> list[Split]:
    try:
        content = json.loads(path.read_bytes())
        users, counts, data = content["users"], content["num_samples"], content["user_data"]
        return [
            _read_user(path, user, data[user], count)
            for user, count in zip(users, counts, strict=True)
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, f"it is not what LEAF writes: {error!r}") from error


def _read_user(path: Path, user: str, samples: dict[str, Any], count: int) -> Split:
    x = np.asarray(samples["x"], dtype=np.float32).reshape(-1, *SHAPE)
    y = np.asarray(samples["y"])
    if not len(x) == len(y) == count:
        raise DataError(
            f"writer {user} in {path} has {len(x)} images and {len(y)} labels where {count} are "
            "announced; the file was cut short, write it again"
        )
    # also false for NaN
    if not (x.min() >= 0 and x.max() <= 1):
        raise DataError(
            f"writer {user} in {path} has pixels from {x.min()} to {x.max()}; LEAF's are from 0 "
            "to 1"
        )
    return Split(np.rint(x * 255).astype(np.uint8), y, np.full(count, user))


def _draw_writers(whole: Split, fraction: float, rng: np.random.Generator) -> Split:
    assert whole.writers is not None
    if fraction == 1:
        return whole
    writers, sizes = np.unique(whole.writers, return_counts=True)
    order = rng.permutation(len(writers))
    reached = np.cumsum(sizes[order])
    taken = order[: np.searchsorted(reached, fraction * len(whole.y)) + 1]
    chosen = whole.take(np.flatnonzero(np.isin(whole.writers, writers[taken])))
    assert chosen.writers is not None
    return Split(chosen.x, chosen.y, number(chosen.writers))


def _divide(whole: Split, rng: np.random.Generator) -> tuple[Split, Split]:
    """Each writer's samples into training and test; a writer always keeps training samples."""
    assert whole.writers is not None
    train: list[NDArray[np.int64]] = []
    test: list[NDArray[np.int64]] = []
    _, sizes = np.unique(whole.writers, return_counts=True)
    for places in np.split(np.argsort(whole.writers, kind="stable"), np.cumsum(sizes)[:-1]):
        shuffled = rng.permutation(places)
        cut = int(TEST_FRACTION * len(shuffled))
        test.append(shuffled[:cut])
        train.append(shuffled[cut:])
    return whole.take(np.concatenate(train)), whole.take(np.concatenate(test))
