"""Targets and aims of the op, and how each is read off the measured rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import THREADS, ratios_of
from benchmarks.contenders import FLOOR, LOOPS, METHODS, OURS, STACKED
from benchmarks.workloads import WORKLOADS

Row = dict[str, Any]
Values = dict[str, float]
# from rows and the statistic of times ("median" or "minimum") to named figures
Reading = Callable[[Sequence[Row], str], Values]


@dataclass(frozen=True)
class Target:
    """One line. ``values`` names every figure that has to hold, ``figures`` counts them all.

    The worst decides.
    """

    title: str
    must: float
    aim: float
    unit: str
    higher_is_better: bool
    values: Reading
    figures: int

    def verdict(self, values: Values) -> str:
        """``aim``, ``must``, ``missed`` or ``not measured``; said of a part where it is one."""
        if not values:
            return "not measured"
        worst = values[self.worst(values)]
        part = f" ({len(values)} of {self.figures} cases)" if len(values) < self.figures else ""
        for name, bound in (("aim", self.aim), ("must", self.must)):
            if worst >= bound if self.higher_is_better else worst <= bound:
                return name + part
        return "missed" + part

    @property
    def is_timed(self) -> bool:
        """Return True if minima would tell something else than medians."""
        return self.unit in ("x", "us", "%")

    def worst(self, values: Values) -> str:
        """The name of the figure that decides."""
        choose = min if self.higher_is_better else max
        return choose(values, key=values.__getitem__)

    def format(self, value: float) -> str:
        """A figure in the line's unit."""
        if self.unit == "l2":
            return f"{value:.1e}"
        scaled = {"us": 1e6, "%": 100}.get(self.unit, 1) * value
        unit = {"x": "x", "us": " us", "%": " %"}.get(self.unit, "")
        return f"{scaled:.3g}{unit}"

    def measured(self, values: Values) -> str:
        """Both figures of a pair, or the worst of many with its name and the best."""
        if not values:
            return "-"
        if len(values) <= 2:
            return ", ".join(f"{self.format(value)} ({name})" for name, value in values.items())
        worst = self.worst(values)
        best = (max if self.higher_is_better else min)(values.values())
        return f"{self.format(values[worst])} ({worst}) to {self.format(best)}"


def _of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def call_times(
    rows: Iterable[Row], statistic: str = "median"
) -> dict[tuple[str, str, int], dict[str, float]]:
    """Seconds of every contender by (list, method, threads)."""
    table: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in _of_kind(rows, "time"):
        key = (row["workload"], row["method"], row["threads"])
        table.setdefault(key, {})[row["contender"]] = row[statistic]
    return table


def speed_up(times: dict[str, float], rivals: Sequence[str]) -> float | None:
    """Speed-up over the fastest of ``rivals``."""
    measured = [times[rival] for rival in rivals if rival in times]
    return min(measured) / times[OURS] if measured and OURS in times else None


def _ratios(
    method: str,
    rivals: Sequence[str],
    workload: str | None = None,
    threads: int | None = None,
    inverse: bool = False,
) -> Reading:
    """Speed-ups over ``rivals``; inverted, how many times their time ours takes."""

    def values(rows: Sequence[Row], statistic: str) -> Values:
        found: Values = {}
        for (name, measured_method, count), times in call_times(rows, statistic).items():
            wanted = workload in (None, name) and threads in (None, count)
            if measured_method != method or not wanted:
                continue
            ratio = speed_up(times, rivals)
            if ratio is not None:
                place = _threads(count) if workload else f"{WORKLOADS[name].title}, {count}t"
                found[place] = 1 / ratio if inverse else ratio
        return found

    return values


def _errors(dtype: str) -> Reading:
    return lambda rows, statistic: {
        f"{WORKLOADS[row['workload']].title}, {row['method']}, r={row['ratio']}": row["error"]
        for row in _of_kind(rows, "accuracy")
        if row["dtype"] == dtype
    }


def _memory(field: str) -> Reading:
    return lambda rows, statistic: {
        f"{WORKLOADS[row['workload']].title}, {row['threads']}t": row[field]
        for row in _of_kind(rows, "memory")
        if row["method"] == "fft" and row[field] is not None
    }


def _overhead(call: str) -> Reading:
    return lambda rows, statistic: {
        row["call"]: row[statistic] for row in _of_kind(rows, "overhead") if row["call"] == call
    }


def _step_share(rows: Sequence[Row], statistic: str) -> Values:
    return {
        f"{row['method']}, {row['threads']}t": row["filter"][statistic] / row["step"][statistic]
        for row in _of_kind(rows, "step")
        if row["contender"] == OURS
    }


_EVERY_LIST = len(WORKLOADS) * len(THREADS)
_ERRORS = sum(
    len(ratios_of(method, workload)) for workload in WORKLOADS.values() for method in METHODS
)

TARGETS = (
    Target(
        "fft, ResNet-20, vs torch.fft layer by layer",
        *(30, 60, "x", True),
        _ratios("fft", LOOPS["fft"], "resnet20"),
        figures=len(THREADS),
    ),
    Target(
        "fft, ResNet-18, vs torch.fft layer by layer",
        *(20, 40, "x", True),
        _ratios("fft", LOOPS["fft"], "resnet18"),
        figures=len(THREADS),
    ),
    Target(
        "fft vs torch.fft with equal lengths stacked, every list",
        *(8, 20, "x", True),
        _ratios("fft", (STACKED,)),
        figures=_EVERY_LIST,
    ),
    Target(
        "fft, ResNet-20, over the floor",
        *(4, 2, "x", False),
        _ratios("fft", (FLOOR,), "resnet20", 1, inverse=True),
        figures=1,
    ),
    Target(
        "lap vs avg_pool1d layer by layer, every list",
        *(15, 30, "x", True),
        _ratios("lap", LOOPS["lap"]),
        figures=_EVERY_LIST,
    ),
    Target(
        "lap, ResNet-20, over the floor",
        *(3, 1.5, "x", False),
        _ratios("lap", (FLOOR,), "resnet20", 1, inverse=True),
        figures=1,
    ),
    Target(
        "lap over the floor, every list",
        *(3, 1.5, "x", False),
        _ratios("lap", (FLOOR,), inverse=True),
        figures=_EVERY_LIST,
    ),
    Target(
        "gaussian vs conv1d layer by layer (the faster of with and without oneDNN), every list",
        *(15, 30, "x", True),
        _ratios("gaussian", LOOPS["gaussian"]),
        figures=_EVERY_LIST,
    ),
    Target(
        "gaussian, ResNet-20, over the floor",
        *(5, 2.5, "x", False),
        _ratios("gaussian", (FLOOR,), "resnet20", 1, inverse=True),
        figures=1,
    ),
    Target(
        "gaussian over the floor, every list",
        *(5, 2.5, "x", False),
        _ratios("gaussian", (FLOOR,), inverse=True),
        figures=_EVERY_LIST,
    ),
    Target(
        "centralize, ResNet-20, over the floor",
        *(1.5, 1.1, "x", False),
        _ratios("centralize", (FLOOR,), "resnet20", 1, inverse=True),
        figures=1,
    ),
    Target(
        "centralize, ResNet-18, over the floor",
        *(1.5, 1.1, "x", False),
        _ratios("centralize", (FLOOR,), "resnet18", 1, inverse=True),
        figures=1,
    ),
    Target(
        "float32 error to the float64 reference, every list, ratio 0.01 to 0.5",
        *(1e-6, 5e-7, "l2", False),
        _errors("float32"),
        figures=_ERRORS,
    ),
    Target(
        "float64 error to the float64 reference, every list, ratio 0.01 to 0.5",
        *(1e-13, 1e-14, "l2", False),
        _errors("float64"),
        figures=_ERRORS,
    ),
    Target(
        "fft workspace, share of the gradients' bytes, every list",
        *(0.3, 0.15, "", False),
        _memory("workspace"),
        figures=_EVERY_LIST,
    ),
    Target(
        "Python and dispatch of filter_grads_ with 20 tensors",
        *(25e-6, 10e-6, "us", False),
        _overhead("filter_grads_"),
        figures=1,
    ),
    Target(
        "Python and dispatch of plan.filter_grads_ with 20 tensors",
        *(8e-6, 5e-6, "us", False),
        _overhead("plan.filter_grads_"),
        figures=1,
    ),
    Target(
        "share of a ResNet-20 training step, batch 50",
        *(0.005, 0.002, "%", False),
        _step_share,
        figures=len(METHODS) * len(THREADS),
    ),
)
