"""Summarise the rounds of a run."""

from __future__ import annotations

import statistics
from typing import Any

from specgrad_fl.config import Config
from specgrad_fl.records import Record

LAST = 10


def summarise(records: list[Record], config: Config) -> dict[str, Any]:
    """Results of a run.

    ``mean_last_10`` averages the evaluations among the last ten rounds; ``rounds_to_target`` is
    the first evaluated round that reaches the target, ``None`` if none does.
    """
    validated = any("validation_accuracy" in r for r in records)
    # the test set is not asked in every round where samples are held out
    decisive = "validation_accuracy" if validated else "test_accuracy"
    best = max((r for r in records if decisive in r), key=lambda r: r[decisive])
    chosen: Record = {} if validated else {"best_accuracy": best[decisive]}
    chosen |= {"best_round": best["round"], "chosen_on": decisive.removesuffix("_accuracy")}
    if validated:
        chosen |= {
            "validation_accuracy": _column(records, decisive)[-1],
            "best_validation_accuracy": best[decisive],
            "validation_mean_last_10": statistics.fmean(_column(records, decisive, LAST)),
            "client_accuracy": _column(records, "client_accuracy")[-1],
        }
    recent = _column(records, "test_accuracy", LAST)
    reached = [r["round"] for r in records if r.get(decisive, -1.0) >= config.target]
    seconds, evaluating, filtering, computing = (
        sum(r["seconds"][part] for r in records)
        for part in ("round", "evaluate", "client_filter", "client_compute")
    )
    return {
        "method": config.method,
        "filter": config.filter,
        "seed": config.seed,
        "rounds": len(records),
        "final_accuracy": _column(records, "test_accuracy")[-1],
        **chosen,
        "mean_last_10": statistics.fmean(recent),
        "evaluations_in_last_10": len(recent),
        "target": config.target,
        "rounds_to_target": reached[0] if config.target and reached else None,
        "seconds": seconds,
        "seconds_per_round": statistics.median(r["seconds"]["round"] for r in records),
        "evaluate_share": evaluating / seconds,
        "filter_share": filtering / (filtering + computing),
        "peak_mib": max(sum(r["memory_mib"].values()) for r in records),
        "bytes_up": sum(r["bytes_up"] for r in records),
        "bytes_down": sum(r["bytes_down"] for r in records),
    }


def _column(records: list[Record], key: str, last: int = 0) -> list[Any]:
    """The values under a key in the ``last`` rounds, or in all, where they have it."""
    return [r[key] for r in records[-last:] if key in r]
