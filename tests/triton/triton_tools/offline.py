"""Compiles kernels for GPUs that are not there, and reads what they cost."""

from __future__ import annotations

import fcntl
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specgrad_kernels.backends.triton import schedule, targets
from specgrad_kernels.backends.triton.signals import plain_signal
from specgrad_kernels.spec import FilterSpec

TARGETS = {f"sm_{number}": GPUTarget("cuda", number, 32) for number in (80, 86, 89, 90, 100, 120)}
TARGETS["gfx942"] = GPUTarget("hip", "gfx942", 64)
TARGETS["gfx1100"] = GPUTarget("hip", "gfx1100", 32)

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_ELEMENTS = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}


@dataclass(frozen=True)
class Variant:
    """One kernel at its compile-time sizes."""

    kernel: str
    sizes: tuple[tuple[str, Any], ...]
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        """Of the dtype."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def label(self) -> str:
        """Readable name of the sizes."""
        return " ".join(f"{name.lower()}={value}" for name, value in self.sizes)


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel needs."""

    registers: int
    spilled_bytes: int
    shared_bytes: int
    warps: int


def variants(
    lengths: list[int],
    spec: FilterSpec,
    dtype: torch.dtype = torch.float32,
) -> list[Variant]:
    """The kernels that a call on layers of these lengths launches."""
    signals = [plain_signal(length, index) for index, length in enumerate(lengths)]
    plan = schedule.build(signals, spec, dtype is torch.float64)
    return [
        Variant(step.kernel, tuple(sorted(step.sizes.items())), dtype) for step in plan.launches
    ]


def compile_variant(variant: Variant, target: str) -> Any:
    """The compiled kernel, with its assembly."""
    kernel = targets.KERNELS[variant.kernel]
    which = (variant.kernel, dict(variant.sizes), variant.dtype, target)
    constants = targets.constants_of(*which)
    real = "*fp64" if variant.dtype is torch.float64 else "*fp32"
    types = {
        "pointers": "*i64",
        "table": "*i64",
        "programs": "*i32",
        "coefficients": real,
        "workspace": real,
        "borders": f"*{_ELEMENTS[variant.dtype]}",
    }
    signature = {
        name: "constexpr" if name in constants else types[name] for name in kernel.arg_names
    }
    # as Triton's front end writes it, so that what either has compiled serves both
    aligned = {
        (index,): [["tt.divisibility", 16]] if name in types else []
        for index, name in enumerate(kernel.arg_names)
    }
    source = ASTSource(kernel, signature, constants, aligned)
    options = targets.options_of(*which)
    # `solve` takes the compiler many seconds: a process that finds another at it waits for that
    folder = Path(triton.knobs.cache.dir)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{source.hash()}-{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return triton.compile(source, target=TARGETS[target], options=options)


@cache
def resources(variant: Variant, target: str) -> Resources:
    """Registers, spilled bytes and shared memory of one kernel on one target."""
    compiled = compile_variant(variant, target)
    registers, spilled = _nvidia(compiled) if target.startswith("sm_") else _amd(compiled)
    which = (variant.kernel, dict(variant.sizes), variant.dtype, target)
    warps = targets.options_of(*which)["num_warps"]
    return Resources(registers, spilled, compiled.metadata.shared, warps)


def _nvidia(compiled: Any) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [_TOOLS / "cuobjdump", "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2]) + int(found[3])


def _amd(compiled: Any) -> tuple[int, int]:
    text = compiled.asm["amdgcn"]

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        assert found, name
        return int(found[1])

    memory = number("private_segment_fixed_size")
    return number("vgpr_count"), max(memory, 4 * number("vgpr_spill_count"))
