"""Search for inputs on which a filter is slower than the obvious PyTorch code.

    python -m benchmarks.cliffs --count 200

Random shapes, strides, dtypes and arguments of every kind with a kernel, one thread. Both ways are
timed in turn and the best of each counts; the worst ratios are printed as a Markdown table, and
the longest first call.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specgrad_kernels import FilterSpec, filter_grads_
from specgrad_kernels.backends import torch_ref
from specgrad_kernels.kinds import BOUNDARIES, FUSED
from specgrad_kernels.layout import permute_axes

LONGEST = 1 << 22
TURNS = 5
GAINS = ((0.0, 0.0), (0.1, 1.0))


class Input(NamedTuple):
    """One call: a gradient and the arguments of the filter."""

    grad: Tensor
    options: dict[str, Any]

    def __str__(self) -> str:
        shape = "x".join(map(str, self.grad.shape))
        channels_last = self.grad.dim() == 4 and self.grad.stride(1) == 1
        strided = " channels last" if channels_last else " transposed"
        layout = "" if self.grad.is_contiguous() else strided
        given = {key: value for key, value in self.options.items() if key != "gains"}
        dtype = str(self.grad.dtype).removeprefix("torch.")
        return f"{shape}{layout} {dtype} {given}"


def draw(rng: random.Random) -> Input:
    """Draw a gradient of 1 to some four million samples and a filter for it."""
    size = math.exp(rng.uniform(0, math.log(LONGEST)))
    dims = rng.choice((1, 2, 4))
    shape = [max(1, round(size ** (1 / dims) * rng.uniform(0.7, 1.4))) for _ in range(dims)]
    if dims == 4:
        kernel = rng.choice((1, 3, 5))
        channels = max(1, round(math.sqrt(size) / kernel))
        shape = [channels, channels, kernel, kernel]
    dtype = rng.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16))
    grad = torch.randn(shape).to(dtype)
    if dims > 1 and rng.random() < 0.3:
        grad = grad.transpose(0, 1).contiguous().transpose(0, 1)
    elif dims == 4 and rng.random() < 0.3:
        grad = grad.contiguous(memory_format=torch.channels_last)
    method = rng.choice([kind.name for kind in FUSED])
    options: dict[str, Any] = {"method": method}
    if method in ("fft", "lap", "gaussian"):
        options["ratio"] = rng.choice((0.01, 0.05, 0.2))
    if method == "fft" and rng.random() < 0.3:
        axes = "".join(map(str, reversed(range(dims))))
        options["order"] = rng.choice((axes, "random:7"))
    if method in ("lap", "gaussian"):
        options["boundary"] = rng.choice(BOUNDARIES)
    if method == "centralize":
        options["group_dims"] = rng.randint(0, min(2, dims - 1))  # groups of more than one sample
    if method == "spectrum":
        options["gains"] = GAINS
    return Input(grad, options)


def _seconds(call: Callable[[], None]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def obvious(grad: Tensor, spec: FilterSpec) -> None:
    """Filter in place as one would write it in PyTorch."""
    if spec.method == "centralize":
        grad.sub_(grad.mean(dim=tuple(range(spec.group_dims, grad.dim())), keepdim=True))
    elif spec.order is None:
        torch_ref.filter_stacked_([grad], spec)
    elif str(spec.order).startswith("random"):
        order = torch.randperm(grad.numel(), generator=torch.Generator().manual_seed(7))
        flat = grad.flatten()[order]
        torch_ref.filter_stacked_([flat], replace(spec, order=None))
        grad.copy_(torch.empty_like(flat).index_copy_(0, order, flat).view(grad.shape))
    else:
        torch_ref.filter_stacked_(permute_axes([grad], spec), replace(spec, order=None))


def measure(given: Input) -> tuple[float, float, float]:
    """Return the seconds of the first call, of the best later one, and of the best torch call."""
    spec = FilterSpec(**given.options)
    grad, twin = given.grad, given.grad.clone()
    first = _seconds(lambda: filter_grads_([grad], **given.options))
    obvious(twin, spec)
    ours = theirs = math.inf
    for _ in range(TURNS):
        ours = min(ours, _seconds(lambda: filter_grads_([grad], **given.options)))
        theirs = min(theirs, _seconds(lambda: obvious(twin, spec)))
    return first, ours, theirs


def main(arguments: list[str] | None = None) -> int:
    """Print the inputs with the largest ratios of our time to PyTorch's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cliffs", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="inputs (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="draws the inputs (default: 0)")
    parser.add_argument("--worst", type=int, default=10, help="rows printed (default: 10)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    rows = []
    for _ in range(options.count):
        given = draw(rng)
        first, ours, theirs = measure(given)
        rows.append((ours / theirs, first, ours, theirs, str(given)))
    rows.sort(reverse=True)
    print("| input | first call, s | ours, ms | torch, ms | ratio |\n|---|---|---|---|---|")
    for ratio, first, ours, theirs, name in rows[: options.worst]:
        print(f"| {name} | {first:.2f} | {1e3 * ours:.3f} | {1e3 * theirs:.3f} | {ratio:.2f} |")
    slower = [sum(row[0] > limit for row in rows) for limit in (1.2, 1.0)]
    longest = max(row[1] for row in rows)
    print(
        f"\n{len(rows)} inputs: {slower[0]} beyond 1.2 times torch, {slower[1]} beyond 1.0 times; "
        f"longest first call {longest:.2f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
