"""The same trainer on many machines: clients on Flower's SuperNodes.

``specgrad-fl train --engine flower`` needs nothing from here. Whoever has a Flower application
already adds the filter to its training function with :func:`filtered`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specgrad_fl.flower.filtering import filtered

__all__ = ["filtered"]


def __getattr__(name: str) -> Any:
    """Load torch when it is first needed."""
    if name == "filtered":
        from specgrad_fl.flower import filtering

        return filtering.filtered
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
