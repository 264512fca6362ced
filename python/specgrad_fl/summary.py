"""From the rounds of a run to the numbers that are compared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, suggest
from specgrad_fl.records import Record

LAST = 10
# what runs are compared by: its key in a summary, and what it is
MEASURES = {
    "last10": ("mean_last_10", "mean accuracy of the last ten rounds"),
    "final": ("final_accuracy", "accuracy after the last round"),
    "best": ("best_accuracy", "best accuracy of all rounds"),
}


def check_measure(name: str) -> None:
    """Refuse a measure that does not exist."""
    if name not in MEASURES:
        raise ConfigError(f"there is no measure {name!r}; {suggest(name, MEASURES)}")


def summarise(records: list[Record], config: Config) -> dict[str, Any]:
    """Results of a run.

    ``mean_last_10`` averages the evaluations among the last ten rounds; ``rounds_to_target`` is
    the first evaluated round that reaches the target, ``None`` if none does.
    """
    scored = [r for r in records if "test_accuracy" in r]
    recent = [r["test_accuracy"] for r in scored if r["round"] > len(records) - LAST]
    reached = [r["round"] for r in scored if r["test_accuracy"] >= config.target]
    seconds = sum(r["seconds"]["round"] for r in records)
    return {
        "method": config.method,
        "filter": config.filter,
        "seed": config.seed,
        "rounds": len(records),
        "final_accuracy": scored[-1]["test_accuracy"],
        **_best(records),
        "mean_last_10": statistics.fmean(recent),
        "evaluations_in_last_10": len(recent),
        "target": config.target,
        "rounds_to_target": reached[0] if config.target and reached else None,
        "seconds": seconds,
        "seconds_per_round": statistics.median(r["seconds"]["round"] for r in records),
        "evaluate_share": sum(r["seconds"]["evaluate"] for r in records) / seconds,
        "filter_share": filter_share(records),
        "peak_mib": max(sum(r["memory_mib"].values()) for r in records),
        "bytes_up": sum(r["bytes_up"] for r in records),
        "bytes_down": sum(r["bytes_down"] for r in records),
    }


def _best(records: list[Record]) -> dict[str, Any]:
    """The best round: by the held-out samples where there are any, else by the test set."""
    checked = [r for r in records if "validation_accuracy" in r]
    if not checked:
        best = max((r for r in records if "test_accuracy" in r), key=lambda r: r["test_accuracy"])
        return {
            "best_accuracy": best["test_accuracy"],
            "best_round": best["round"],
            "chosen_on": "test",
        }
    best = max(checked, key=lambda r: r["validation_accuracy"])
    recent = [r["validation_accuracy"] for r in checked if r["round"] > len(records) - LAST]
    return {
        "best_round": best["round"],
        "chosen_on": "validation",
        "validation_accuracy": checked[-1]["validation_accuracy"],
        "best_validation_accuracy": best["validation_accuracy"],
        "validation_mean_last_10": statistics.fmean(recent),
        "client_accuracy": checked[-1]["client_accuracy"],
    }


def shown(summary: dict[str, Any]) -> dict[str, str]:
    """The numbers of a summary that a person reads first, rounded."""
    row = {
        "rounds": str(summary["rounds"]),
        "final %": f"{100 * summary['final_accuracy']:.1f}",
        "best %": f"{100 * summary['best_accuracy']:.1f}",
        "best round": str(summary["best_round"]),
        "chosen on": summary.get("chosen_on", "test"),
    }
    if "client_accuracy" in summary:
        clients = summary["client_accuracy"]
        row["client mean %"] = f"{100 * clients['mean']:.1f}"
        row["worst tenth %"] = f"{100 * clients['worst_decile']:.1f}"
    return row | {
        "s/round": f"{summary['seconds_per_round']:.2f}",
        "filter %": f"{100 * summary['filter_share']:.2f}",
        "peak MiB": f"{summary['peak_mib']:.0f}",
    }


def client_statistics(accuracies: Sequence[float]) -> dict[str, float]:
    """Over clients: the mean, the standard deviation, and the mean of the worst tenth.

    >>> client_statistics([0.5, 1.0])
    {'mean': 0.75, 'spread': 0.25, 'worst_decile': 0.5}
    """
    worst = sorted(accuracies)[: math.ceil(len(accuracies) / 10)]
    return {
        "mean": statistics.fmean(accuracies),
        "spread": statistics.pstdev(accuracies),
        "worst_decile": statistics.fmean(worst),
    }


def filter_share(records: list[Record]) -> float:
    """The filter's part of the clients' time."""
    filtering = sum(r["seconds"]["client_filter"] for r in records)
    return filtering / (filtering + sum(r["seconds"]["client_compute"] for r in records))
