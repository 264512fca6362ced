"""Values of flags that are lists: ``a,b`` as words, whole numbers or numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

Item = TypeVar("Item", int, float)


def words(text: str) -> list[str]:
    """Words, each once, without the spaces around them.

    >>> words("fft, lap, fft")
    ['fft', 'lap']
    """
    return list(dict.fromkeys(_parts(text)))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str) -> list[int]:
    """One or more whole numbers, each once.

    >>> whole_numbers("0,10,0")
    [0, 10]
    """
    return list(dict.fromkeys(_converted(text, int, "0,1,2")))


def numbers(text: str) -> list[float]:
    """One or more numbers.

    >>> numbers("500,0.5")
    [500.0, 0.5]
    """
    return _converted(text, float, "500,300")


def _converted(text: str, convert: Callable[[str], Item], example: str) -> list[Item]:
    refusal = argparse.ArgumentTypeError(f"{text!r} is no list such as {example}")
    try:
        found = [convert(part) for part in _parts(text)]
    except ValueError:
        raise refusal from None
    if not found:
        raise refusal
    return found
