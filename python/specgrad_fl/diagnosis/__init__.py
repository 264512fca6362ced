"""``specgrad-fl diagnose``: where a federation drifts, and which layers to filter."""

from specgrad_fl.diagnosis.collect import Checkpoint, Collector, collect

__all__ = ["Checkpoint", "Collector", "collect"]
