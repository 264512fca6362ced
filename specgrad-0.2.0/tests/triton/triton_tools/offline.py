"""Compiles kernels for GPUs that are not there, and reads their registers, spills and memory."""

from __future__ import annotations

import fcntl
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import triton

from specgrad_kernels.backends.triton.compiling import (
    Variant,
    compile_offline,
    source_of,
    variants,
)

TARGETS = (
    *(f"sm_{number}" for number in (75, 80, 86, 89, 90, 100, 120)),
    "gfx942",
    "gfx1100",
)
__all__ = ["TARGETS", "Resources", "Variant", "compile_variant", "resources", "variants"]

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Resources:
    """Registers and memory of one compiled kernel."""

    registers: int
    spilled_bytes: int
    shared_bytes: int
    warps: int


def compile_variant(variant: Variant, target: str) -> Any:
    """The compiled kernel, with its assembly."""
    # compiling takes seconds: a process that finds another at the same kernel waits for it
    folder = Path(triton.knobs.cache.dir)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{source_of(variant, target).hash()}-{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return compile_offline(variant, target)


@cache
def resources(variant: Variant, target: str) -> Resources:
    """Registers, spilled bytes and shared memory of one kernel on one target."""
    compiled = compile_variant(variant, target)
    registers, spilled = _nvidia(compiled) if target.startswith("sm_") else _amd(compiled)
    warps = variant.options(target)["num_warps"]
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
