"""The op and its rivals under pytest-benchmark: ``pytest benchmarks/bench_op.py``.

It runs one contender after another, so on a busy machine ``python -m benchmarks.run`` is fairer.
Select with ``-k``, for instance ``-k "resnet20 and fft and 1t"``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.accuracy import truth, worst_error
from benchmarks.cases import RATIO, TOLERANCE
from benchmarks.contenders import METHODS, Contender, contenders_of
from benchmarks.timing import Effort, quiet_process, timed
from benchmarks.workloads import WORKLOADS, Workload
from specgrad_kernels import FilterSpec

EFFORT = Effort(seconds=0.5)


@pytest.mark.parametrize("threads", [1, 2], ids=["1t", "2t"])
@pytest.mark.parametrize(
    ("workload", "method", "contender"),
    [
        pytest.param(workload, method, contender, id=f"{workload.name}-{method}-{contender.name}")
        for workload in WORKLOADS.values()
        for method in METHODS
        for contender in contenders_of(method, workload.longest)
    ],
)
def test_filter(
    benchmark: Any, workload: Workload, method: str, contender: Contender, threads: int
) -> None:
    fresh = workload.gradients()
    grads = [grad.clone() for grad in fresh]
    call = contender.bind(grads, method, RATIO)

    def refresh() -> None:
        torch._foreach_copy_(grads, fresh)

    benchmark.group = f"{workload.name} {method} {threads}t"
    with quiet_process(threads):
        refresh()
        call()
        spec = FilterSpec(method=method, ratio=RATIO)
        expected = [truth(grad, spec) for grad in fresh] if contender.filters else fresh
        assert worst_error(grads, expected) <= TOLERANCE
        refresh()
        rounds = EFFORT.count(timed(call))
        benchmark.pedantic(call, setup=refresh, rounds=rounds, warmup_rounds=min(rounds - 1, 3))
