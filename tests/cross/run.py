"""Kernels of another processor or compiler against the float64 reference, without its torch.

    python tests/cross/run.py --compiler "aarch64-linux-gnu-g++ -static" --run qemu-aarch64
    python tests/cross/run.py --compiler "clang++ -stdlib=libc++"

Designs are made here, for vectors of 128 bits. The driver filters every kind, dtype and layout in
one process, and each result must keep the promised error.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specgrad_kernels import filter_grads_
from specgrad_kernels.backends import cpp
from specgrad_kernels.design import stored_rounding
from specgrad_kernels.kinds import KINDS, Bins, Numbers
from specgrad_kernels.layout import collapse, signal_shape
from specgrad_kernels.spec import FilterSpec

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ("filters.cpp", "cpu.cpp", "kernels.cpp", "kernels_portable.cpp")
X86_SOURCES = ("kernels_avx2.cpp", "kernels_avx512.cpp")
VECTOR_BYTES = {"portable": 16, "neon": 16, "avx2": 32, "avx512": 64}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SPECS = (
    {"method": "fft"},
    {"method": "fft", "ratio": 0.3},
    {"method": "fft", "strategy": "full"},
    {"method": "fft", "strategy": "dense"},
    {"method": "fft", "strategy": "band"},
    *(
        {"method": "lap", "boundary": each}
        for each in ("count", "circular", "reflect", "replicate")
    ),
    {"method": "lap", "window": 5},
    {"method": "gaussian"},
    {"method": "gaussian", "sigma": 2.5, "boundary": "circular"},
    {"method": "centralize"},
    {"method": "centralize", "group_dims": 0},
    {"method": "spectrum", "gains": ((0.0, 0.2), (0.5, 1.0))},
    {"method": "spectrum", "gains": ((0.0, 0.0), (0.1, 0.0), (0.1, 1.0))},
    {"method": "fft_high"},
    {"method": "random", "seed": 3},
)
SHAPES = ((39,), (1001,), (16, 3, 3, 3), (64, 64, 3, 3), (10_007,), (8, 2027), (3, 67_500))
LENGTHS = tuple(map(math.prod, SHAPES))
FITS = {"dense": LENGTHS[:3], "band": LENGTHS[3:4]}  # lengths for which a strategy can be asked for


class Case(NamedTuple):
    """One gradient, its filtered truth, and the error that is promised for it."""

    name: str
    grad: Tensor
    exact: Tensor
    bound: float
    lines: str


def gradients(shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield a contiguous gradient, and one that is spread out in memory."""
    values = torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape))
    yield values.to(dtype)
    if shape[0] < 100:
        yield values.to(dtype).movedim(0, -1).contiguous().movedim(-1, 0)


def text_of(field: Any, integers: bool) -> str:
    if isinstance(field, bytes):
        numbers = np.frombuffer(field, np.int64 if integers else np.float64).tolist()
        return " ".join(str(each) if integers else float(each).hex() for each in numbers)
    return str(int(field)) if isinstance(field, bool) else str(field)


def truth(grad: Tensor, options: dict[str, Any], numbers: Numbers, d: int) -> Tensor:
    """The filtered gradient; bins by NumPy, as the transform of MKL can lose two digits."""
    exact = grad.double().contiguous().clone()
    if isinstance(numbers, Bins) and numbers.row is None:
        signals = exact.numpy().reshape(-1, d).astype(np.longdouble)
        spectra = np.fft.rfft(signals)
        spectra[:, : len(numbers.removed)] *= 1 - numbers.removed
        filtered = np.fft.irfft(spectra, d).astype(np.float64)
        return torch.from_numpy(filtered).view_as(exact)
    filter_grads_([exact], backend="torch", **{**options, "strategy": "auto"})
    return exact


def make_case(grad: Tensor, options: dict[str, Any]) -> Case | None:
    """Design a case as the CPU backend does; None where the filter leaves the gradient alone."""
    spec = FilterSpec(**options)
    shape = signal_shape(grad.shape, spec)
    parameters = spec.kind.parameters(spec, shape, 0)
    if parameters is None or spec.kind.check_shape(spec, grad.shape):
        return None
    d, stack = math.prod(shape), grad.dim() - len(shape)
    made = cpp._design(spec, parameters, d, grad.dtype == torch.float64)
    numbers = spec.kind.numbers(parameters, d, spec)
    assert numbers is not None
    exact = truth(grad, options, numbers, d)
    layout = cpp._TensorLayout(
        str(grad.dtype).removeprefix("torch."),
        *map(cpp._integers, (grad.shape, grad.stride())),
        0,
        grad.numel() * grad.itemsize,
        *map(cpp._integers, collapse(grad.shape[:stack], grad.stride()[:stack])),
        *map(cpp._integers, collapse(grad.shape[stack:], grad.stride()[stack:])),
    )
    lines = [
        f"{name} {text_of(value, name.endswith('radices'))}"
        for name, value in made.design._asdict().items()
    ]
    lines += [f"{name} {text_of(value, True)}" for name, value in layout._asdict().items()]
    lines += [f"run {grad.numel() * grad.itemsize}"]
    bound = made.error_bound + stored_rounding(grad.dtype, made.norm)
    name = f"{options} {grad.dtype} {tuple(grad.shape)} {grad.stride()} {made.name}"
    return Case(name, grad, exact, bound, "\n".join(lines) + "\n")


def all_cases() -> list[Case]:
    with_kernels = {name for name, kind in KINDS.items() if kind.has_kernel}
    assert with_kernels == {options["method"] for options in SPECS}
    made = (
        make_case(grad, options)
        for options in SPECS
        for dtype in DTYPES
        for shape in SHAPES
        if math.prod(shape) in FITS.get(options.get("strategy"), LENGTHS)
        for grad in gradients(shape, dtype)
    )
    return [case for case in made if case is not None]


def memory(grad: Tensor) -> np.ndarray:
    """The bytes of a gradient that fills its memory."""
    flat = grad.as_strided((grad.numel(),), (1,))
    return flat.view(torch.uint8).numpy()


def build(compiler: str, folder: Path) -> Path:
    machine = subprocess.run(
        [*shlex.split(compiler), "-dumpmachine"], check=True, capture_output=True, text=True
    ).stdout
    sources = SOURCES + (X86_SOURCES if machine.startswith("x86_64") else ())
    flags = ["-O3", "-std=c++17", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    binary = folder / "driver"
    files = [ROOT / "tests" / "cross" / "driver.cpp", *(ROOT / "csrc" / name for name in sources)]
    subprocess.run([*shlex.split(compiler), *flags, *files, "-o", binary], check=True)
    return binary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--compiler", required=True, help="command, with its own flags")
    parser.add_argument(
        "--run", default="", help="command that runs the binary, such as qemu-aarch64"
    )
    parser.add_argument("--isa", default="portable", choices=tuple(VECTOR_BYTES))
    parser.add_argument("--keep", type=Path, help="folder for the binary, to use it again")
    given = parser.parse_args()
    cpp._BYTES_A_VECTOR = VECTOR_BYTES[given.isa]
    cases = all_cases()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        binary = folder / "driver"
        if not binary.exists():
            build(given.compiler, folder)
        data = np.concatenate([memory(case.grad) for case in cases])
        (folder / "cases").write_text("".join(case.lines for case in cases))
        data.tofile(folder / "data")
        command = [*shlex.split(given.run), binary, folder / "cases", folder / "data"]
        environment = {**os.environ, "SPECGRAD_ISA": given.isa}
        subprocess.run(command, check=True, env=environment)
        filtered = np.fromfile(folder / "data", np.uint8)
    return report(cases, filtered)


def report(cases: list[Case], filtered: np.ndarray) -> int:
    """Compare with the truth and print the largest share of the promise, by dtype."""
    place, worst, broken = 0, {}, 0
    for case in cases:
        size = case.grad.numel() * case.grad.itemsize
        result = case.grad.clone(memory_format=torch.preserve_format)
        memory(result)[:] = filtered[place : place + size]
        place += size
        share = (
            float((result.double() - case.exact).norm() / case.grad.double().norm()) / case.bound
        )
        worst[case.grad.dtype] = max(share, worst.get(case.grad.dtype, 0.0))
        if not share <= 1:
            broken += 1
            print(f"{share:.3g} of the promise: {case.name}")
    for dtype, share in worst.items():
        print(f"{dtype}: at most {share:.2f} of the promised error")
    print(f"{len(cases)} cases, {broken} beyond the promise")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
