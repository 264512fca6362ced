"""Decoded data of tests never reach the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for this test alone."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECGRAD_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Where real data sets may be: ``$SPECGRAD_DATA``, or ``../shared/data``."""
    return Path(os.environ.get("SPECGRAD_DATA") or REPOSITORY.parent / "shared" / "data")
