"""Count of waves that exceed the promised error: every frequency, every backend here, every dtype.

python -m benchmarks.waves                    # fft, the lengths of the table in docs/results
python -m benchmarks.waves --lengths 432 --every 1 --kinds all
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from specgrad_kernels import FilterSpec, available_backends, filter_grads_
from specgrad_kernels.backends import BACKENDS
from specgrad_kernels.kinds.spectrum import gains_of
from specgrad_kernels.reference import random_bins

LENGTHS = (432, 2304, 4608, 10_007, 36864)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
KINDS: dict[str, dict[str, Any]] = {
    "fft": {},
    "fft of much": {"ratio": 0.3},
    "soft edge": {"method": "spectrum", "gains": ((0.0, 0.0), (0.08, 1.0))},
    "band-pass": {"method": "spectrum", "gains": ((0.2, 0.0), (0.3, 2.0), (0.9, 0.5))},
    "random": {"method": "random", "seed": 3},
    "centralize": {"method": "centralize", "group_dims": 0},
}
wide = np.longdouble
"""Wider than double where a test of float64 is to mean anything."""


def gains(spec: FilterSpec, d: int) -> np.ndarray:
    """The factor of every bin, from the definitions alone."""
    if spec.method == "spectrum":
        return gains_of(tuple(spec.gains or ()), d)
    kept = np.ones(d // 2 + 1)
    if spec.method == "random":
        kept[random_bins(d, spec.cutoff(d), spec.seed).numpy()] = 0
    else:
        kept[: 1 if spec.method == "centralize" else spec.cutoff(d)] = 0
    return kept


def filtered(signals: torch.Tensor, spec: FilterSpec, backend: str) -> np.ndarray:
    """Filter ``[count, d]`` signals by a backend, in float64."""
    stacked = signals.clone()
    names = ("method", "ratio", "gains", "seed", "group_dims")
    options = {name: getattr(spec, name) for name in names}
    filter_grads_(list(stacked), backend=backend, **options)
    values: np.ndarray = stacked.double().numpy()
    return values


def bound_of(spec: FilterSpec, d: int, dtype: torch.dtype, backend: str) -> float:
    """The promise: error relative to the signal's length."""
    (module,) = [module for module in BACKENDS if backend == module.NAME]
    return module.explain(spec, d, 0, dtype)[1]


def waves(d: int, bins: Sequence[int] | np.ndarray) -> np.ndarray:
    """Waves of these frequencies as exactly as this machine can."""
    turns = np.outer(bins, np.arange(d)) % d / wide(d)
    pi = wide("3.14159265358979323846264338327950288")
    return np.cos(2 * pi * turns + wide(0.3))


def lengths(value: np.ndarray) -> np.ndarray:
    """Norms of the rows."""
    return np.linalg.norm(value.astype(np.float64), axis=-1)


def share_of_promise(
    d: int, bins: np.ndarray, backends: Iterable[str], kinds: Iterable[str]
) -> Iterator[tuple[str, str, torch.dtype, np.ndarray]]:
    """Kind, backend, dtype, and the error of each of some waves over what is promised.

    A wave is filtered by its own factor, and what rounding to the dtype added to it by a transform.
    """
    for part in np.array_split(bins, -(-len(bins) * d // 2**20)):
        widest = waves(d, part)
        for dtype in DTYPES:
            exact_waves = widest if dtype == torch.float64 else widest.astype(np.float64)
            signals = torch.from_numpy(exact_waves.astype(np.float64)).to(dtype)
            added = (signals.double().numpy() - exact_waves).astype(np.float64)
            spectrum, size = np.fft.rfft(added), lengths(exact_waves + added)
            for name in kinds:
                spec = FilterSpec(**KINDS[name])
                factor = gains(spec, d)
                exact = factor[part, None] * exact_waves + np.fft.irfft(spectrum * factor, n=d)
                for backend in backends:
                    error = lengths(filtered(signals, spec, backend) - exact)
                    yield name, backend, dtype, error / (bound_of(spec, d, dtype, backend) * size)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--every", type=int, default=1, help="take every n-th wave")
    parser.add_argument("--kinds", choices=("fft", "all"), default="fft")
    asked = parser.parse_args()
    kinds = list(KINDS) if asked.kinds == "all" else ["fft"]
    backends = [name for name in available_backends() if name != "triton"]
    print("| d | kind | backend | dtype | waves | above the promise | largest share of it |")
    print("|---|---|---|---|---|---|---|")
    for d in asked.lengths:
        found = defaultdict(list)
        bins = np.arange(0, d // 2 + 1, asked.every)
        for kind, backend, dtype, share in share_of_promise(d, bins, backends, kinds):
            found[kind, backend, str(dtype).removeprefix("torch.")].append(share)
        for key, parts in found.items():
            shares = np.concatenate(parts)
            row = (d, *key, len(shares), int(np.sum(shares > 1)), f"{shares.max():.2f}")
            print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
