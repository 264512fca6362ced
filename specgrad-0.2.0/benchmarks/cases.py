"""Everything that is measured, as cases that each yield rows of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import accuracy, memory
from benchmarks.contenders import METHODS, OURS, Contender, contenders_of
from benchmarks.step import LOOP, TrainingStep, time_steps
from benchmarks.timing import Call, Effort, quiet_process, time_in_turn, timed
from benchmarks.workloads import WORKLOADS, Workload
from specgrad_kernels import FilterPlan, FilterSpec, filter_grads_

Row = dict[str, Any]

THREADS = (1, 2)
RATIO = 0.05
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
DETREND_RATIOS = (0.01, 0.05, 0.5)
# what plain PyTorch in float32 may be away from float64 before its time means nothing
TOLERANCE = 2e-6
CALL_TENSORS = 20


class WrongResultError(Exception):
    """A contender does not compute the filter."""


@dataclass(frozen=True)
class Case:
    """``seconds`` is a guess for the first estimate of the time left."""

    title: str
    words: frozenset[str]
    seconds: float
    run: Callable[[], list[Row]]


def _check_contenders(
    contenders: Sequence[Contender],
    calls: Mapping[str, Call],
    grads: list[Tensor],
    fresh: list[Tensor],
    expected: list[Tensor],
) -> dict[str, float]:
    """Seconds of every contender's first call; raises for one that does not filter."""
    seconds = {}
    for contender in contenders:
        torch._foreach_copy_(grads, fresh)
        seconds[contender.name] = timed(calls[contender.name])
        error = accuracy.worst_error(grads, expected if contender.filters else fresh)
        if not error <= TOLERANCE:
            raise WrongResultError(
                f"{contender.title} is off by {error:.1e}; "
                "nothing is timed that does not compute the filter"
            )
    return seconds


def time_case(workload: Workload, method: str, threads: Sequence[int], effort: Effort) -> list[Row]:
    """Check every contender, then time them in turn."""
    fresh = workload.gradients()
    grads = [grad.clone() for grad in fresh]
    contenders = contenders_of(method, workload.longest)
    calls = {c.name: c.bind(grads, method, RATIO) for c in contenders}
    expected = [accuracy.truth(grad, FilterSpec(method=method, ratio=RATIO)) for grad in fresh]
    rows = []
    for count in threads:
        with quiet_process(count):
            first_calls = _check_contenders(contenders, calls, grads, fresh, expected)
            refresh = partial(torch._foreach_copy_, grads, fresh)
            summaries = time_in_turn(calls, effort, refresh, first_calls)
        rows += [
            {
                "kind": "time",
                "workload": workload.name,
                "method": method,
                "dtype": "float32",
                "ratio": RATIO,
                "threads": count,
                "contender": name,
                **asdict(summary),
            }
            for name, summary in summaries.items()
        ]
    return rows


def accuracy_case(workload: Workload, method: str, ratios: Sequence[float]) -> list[Row]:
    """The op's errors in both precisions."""
    rows = []
    for ratio in ratios:
        dtypes = (torch.float32, torch.float64)
        errors = accuracy.errors_of(workload, method, ratio, dtypes)
        for dtype, error in zip(dtypes, errors, strict=True):
            rows.append(
                {
                    "kind": "accuracy",
                    "workload": workload.name,
                    "method": method,
                    "dtype": str(dtype).removeprefix("torch."),
                    "ratio": ratio,
                    "error": error,
                }
            )
    return rows


def memory_case(workload: Workload, method: str, threads: Sequence[int]) -> list[Row]:
    """Working memory, and all that is kept."""
    spec = FilterSpec(method=method, ratio=RATIO)
    alone = memory.workspace_share(workload, spec)
    kept = {}
    for count in sorted({1, *threads}):
        with quiet_process(count):
            kept[count] = memory.kept_share(workload, spec)
    rows = []
    for count in threads:
        # further threads share tables and a long layer's grid, so what they add is measured
        added = max(kept[count] - kept[1], 0.0)
        rows.append(
            {
                "kind": "memory",
                "workload": workload.name,
                "method": method,
                "threads": count,
                "workspace": alone + added,
                "kept": kept[count],
            }
        )
    return rows


def overhead_case(effort: Effort) -> list[Row]:
    """A call with tensors so short that nothing is to be filtered: only the way there is left."""
    layers = [torch.nn.Parameter(torch.randn(4, 1, 3, 3)) for _ in range(CALL_TENSORS)]
    for layer in layers:
        layer.grad = torch.randn_like(layer)
    grads = [layer.grad for layer in layers]
    plan = FilterPlan([(str(index), layer) for index, layer in enumerate(layers)])
    calls = {
        "filter_grads_": lambda: filter_grads_(grads),
        "plan.filter_grads_": plan.filter_grads_,
    }
    with quiet_process(1):
        summaries = time_in_turn(calls, effort)
    return [
        {"kind": "overhead", "call": name, "tensors": CALL_TENSORS, **asdict(summary)}
        for name, summary in summaries.items()
    ]


def step_case(threads: int, seconds: float, fewest: int = 5) -> list[Row]:
    """Filter's share of a training step, for every method and for the torch.fft loop."""
    names = [(method, OURS) for method in METHODS] + [("fft", LOOP)]
    with quiet_process(threads):
        steps = {f"{m} {c}": TrainingStep(m, c, RATIO) for m, c in names}
        times = time_steps(steps, seconds, fewest)
    return [
        {
            "kind": "step",
            "method": method,
            "contender": contender,
            "threads": threads,
            "step": asdict(step),
            "filter": asdict(inside),
            "share": inside.median / step.median,
        }
        for (method, contender), (step, inside) in zip(names, times.values(), strict=True)
    ]


def ratios_of(method: str, workload: Workload) -> Sequence[float]:
    """Ratios at which errors are measured."""
    if method == "fft":
        return RATIOS
    if method == "centralize":  # it has no ratio
        return (RATIO,)
    # a reference convolution of 16.7 M samples takes as long as all the others together
    return DETREND_RATIOS if workload.longest < 2**24 else ()


def all_cases(threads: Sequence[int], quick: bool = False) -> Iterator[Case]:
    """The suite in the order in which it runs. ``quick`` keeps the two shortest lists."""
    effort = Effort(0.1, fewest=2, most=100) if quick else Effort(1.5)
    step_seconds = 1.0 if quick else 15.0
    lists = [w for w in WORKLOADS.values() if not quick or w.weights < 1_000_000]
    yield Case("overhead of a call", frozenset({"overhead"}), 1, partial(overhead_case, effort))
    for workload in lists:
        for method in METHODS:
            slow = 3e5 if method == "gaussian" else 3e6
            yield Case(
                f"times on {workload.title}, {method}",
                frozenset({"time", workload.name, method}),
                len(threads) * (3 * effort.seconds + workload.weights / slow),
                partial(time_case, workload, method, threads, effort),
            )
    for count in threads:
        yield Case(
            f"training step, {count} thread{'s' * (count > 1)}",
            frozenset({"step"}),
            step_seconds + 2,
            partial(step_case, count, step_seconds),
        )
    for workload in lists:
        yield Case(
            f"memory for {workload.title}",
            frozenset({"memory", workload.name, "fft"}),
            0.5 + workload.weights / 5e6,
            partial(memory_case, workload, "fft", threads),
        )
    for workload in lists:
        for method in METHODS:
            ratios = ratios_of(method, workload)
            if not ratios:
                continue
            yield Case(
                f"errors on {workload.title}, {method}",
                frozenset({"accuracy", workload.name, method}),
                0.2 + workload.weights * len(ratios) / 8e6,
                partial(accuracy_case, workload, method, ratios),
            )
