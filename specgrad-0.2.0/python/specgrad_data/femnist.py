"""FEMNIST: the JSON files that LEAF's scripts write, or hub parquet; one client per writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from specgrad_data import parquet
from specgrad_data.cache import cached
from specgrad_data.dataset import Dataset, Places, Split, build
from specgrad_data.errors import DataError
from specgrad_data.files import Array, damaged, missing, number

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
    splits = _divide(_read(folder), fraction, rng)
    half = ((0.5,), (0.5,))
    return build(NAME, *splits, num_classes=NUM_CLASSES, shape=SHAPE, normalise=half)


def _read(folder: Path) -> Split:
    """All samples with their writers, before they are divided."""
    files = sorted(folder.glob("*.json")) or sorted((folder / "all_data").glob("*.json"))
    is_leaf = bool(files)
    files = files or parquet.find_parquet(folder, "train")
    if not files:
        raise missing(NAME, folder)

    def decode() -> tuple[Split, Split]:
        """In the form of the cache, which keeps a training and a test split."""
        columns = ("image", "character", "writer_id")
        whole = _read_leaf(files) if is_leaf else parquet.read_images(files, *columns, mode="L")
        return whole, Split(whole.x[:0], whole.y[:0])

    return cached(NAME, files, decode)[0]


def _read_leaf(files: list[Path]) -> Split:
    images: list[Array] = []
    labels: list[Array] = []
    writers: list[str] = []
    for path in files:
        try:
            content = json.loads(path.read_bytes())
            users, counts, data = content["users"], content["num_samples"], content["user_data"]
            for user, count in zip(users, counts, strict=True):
                x, y = _read_user(path, user, data[user], count)
                images.append(x)
                labels.append(y)
                writers += [user] * count
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise damaged(path, f"it is not what LEAF writes: {error!r}") from error
    if not images:
        raise damaged(files[0], "no writer is in it")
    return Split(np.concatenate(images), np.concatenate(labels), number(np.array(writers)))


def _read_user(path: Path, user: str, samples: dict[str, Any], count: int) -> tuple[Array, Array]:
    x = np.asarray(samples["x"], dtype=np.float32).reshape(-1, *SHAPE)
    y = np.asarray(samples["y"]).reshape(-1)
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
    return np.rint(x * 255).astype(np.uint8), y


def _divide(whole: Split, fraction: float, rng: np.random.Generator) -> tuple[Split, Split]:
    """Draw writers, and divide each one's samples; a writer always keeps training samples."""
    assert whole.writers is not None
    _, sizes = np.unique(whole.writers, return_counts=True)
    groups = np.split(np.argsort(whole.writers, kind="stable"), np.cumsum(sizes)[:-1])
    if fraction < 1:
        order = rng.permutation(len(groups))
        reached = np.cumsum(sizes[order])
        taken = order[: np.searchsorted(reached, fraction * len(whole.y)) + 1]
        groups = [groups[writer] for writer in sorted(taken)]
    train: list[Places] = []
    test: list[Places] = []
    for places in groups:
        shuffled = rng.permutation(places)
        cut = int(TEST_FRACTION * len(shuffled))
        test.append(shuffled[:cut])
        train.append(shuffled[cut:])
    kept = np.concatenate(train)
    writers = number(whole.writers[kept])
    return Split(whole.x[kept], whole.y[kept], writers), whole.take(np.concatenate(test))
