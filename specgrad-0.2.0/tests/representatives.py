"""Parameters of which ``make test`` runs a few and ``make test-all`` every one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def only(kept: Iterable[Any], every: Collection[Any]) -> list[Any]:
    """All of ``every``; those that are not ``kept`` are marked as exhaustive. Tuples are rows."""
    kept = list(kept)
    rows = [value if isinstance(value, tuple) else (value,) for value in every]
    marks = [() if value in kept else pytest.mark.exhaustive for value in every]
    return [pytest.param(*row, marks=mark) for row, mark in zip(rows, marks, strict=True)]
