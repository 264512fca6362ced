"""Everything that is measured, as cases that each yield rows of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks import accuracy, memory
from benchmarks.contenders import METHODS, OURS, contenders_of
from benchmarks.step import LOOP, TrainingStep, time_steps
from benchmarks.timing import Effort, quiet_process, time_in_turn
from benchmarks.workloads import WORKLOADS, Workload
from specgrad_kernels import FilterPlan, FilterSpec, filter_grads_

Row = dict[str, Any]

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


def time_case(workload: Workload, method: str, threads: int, effort: Effort) -> list[Row]:
    """Check every contender, then time them in turn."""
    fresh = workload.gradients()
    grads = [grad.clone() for grad in fresh]
    spec = FilterSpec(method=method, ratio=RATIO)
    contenders = contenders_of(method, workload.longest)
    calls = {c.name: c.bind(grads, method, RATIO) for c in contenders}
    expected = [accuracy.truth(grad, spec) for grad in fresh]
    with quiet_process(threads):
        for contender in contenders:
            torch._foreach_copy_(grads, fresh)
            calls[contender.name]()
            error = accuracy.worst_error(grads, expected if contender.filters else fresh)
            if not error <= TOLERANCE:
                raise WrongResultError(
                    f"{contender.title} is off by {error:.1e} on {workload.title} ({method}); "
                    "nothing is timed that does not compute the filter"
                )
        del expected
        summaries = time_in_turn(calls, effort, lambda: torch._foreach_copy_(grads, fresh))
    return [
        {
            "kind": "time",
            "workload": workload.name,
            "method": method,
            "dtype": "float32",
            "ratio": RATIO,
            "threads": threads,
            "contender": name,
            **asdict(summary),
        }
        for name, summary in summaries.items()
    ]


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
    rows = []
    for count in threads:
        with quiet_process(count):
            rows.append(
                {
                    "kind": "memory",
                    "workload": workload.name,
                    "method": method,
                    "threads": count,
                    "workspace": memory.workspace_share(
                        workload, FilterSpec(method=method, ratio=RATIO), count
                    ),
                    "kept": memory.kept_share(workload, method, RATIO),
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


def step_case(threads: int, seconds: float) -> list[Row]:
    """What the filter takes of a training step, for every method and for the torch.fft loop."""
    names = [(method, OURS) for method in METHODS] + [("fft", LOOP)]
    with quiet_process(threads):
        steps = {f"{m} {c}": TrainingStep(m, c, RATIO) for m, c in names}
        times = time_steps(steps, seconds)
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


def all_cases(threads: Sequence[int], quick: bool = False) -> Iterator[Case]:
    """The suite in the order in which it runs. ``quick`` leaves out the longest lists."""
    effort = Effort(0.1, fewest=2, most=100) if quick else Effort(1.0)
    step_seconds = 1.0 if quick else 12.0
    lists = [w for w in WORKLOADS.values() if not (quick and w.weights > 5_000_000)]
    yield Case("overhead of a call", frozenset({"overhead"}), 1, lambda: overhead_case(effort))
    for workload in lists:
        for method in METHODS:
            for count in threads:
                yield Case(
                    f"{workload.title}, {method}, {count} thread{'s' * (count > 1)}",
                    frozenset({"time", workload.name, method}),
                    len(METHODS) * effort.seconds * (1 + workload.weights / 3e6),
                    lambda w=workload, m=method, c=count: time_case(w, m, c, effort),
                )
    for count in threads:
        yield Case(
            f"training step, {count} thread{'s' * (count > 1)}",
            frozenset({"step"}),
            step_seconds + 2,
            lambda c=count: step_case(c, step_seconds),
        )
    for workload in lists:
        yield Case(
            f"workspace of {workload.title}",
            frozenset({"memory", workload.name, "fft"}),
            0.5 + workload.weights / 1e7,
            lambda w=workload: memory_case(w, "fft", threads),
        )
    for workload in lists:
        for method in METHODS:
            # one reference convolution of 16.7 M samples takes as long as the rest together
            if method != "fft" and workload.name == "long":
                continue
            ratios = RATIOS if method == "fft" else DETREND_RATIOS
            yield Case(
                f"errors on {workload.title}, {method}",
                frozenset({"accuracy", workload.name, method}),
                0.2 + workload.weights * len(ratios) / 8e6,
                lambda w=workload, m=method, r=ratios: accuracy_case(w, m, r),
            )
