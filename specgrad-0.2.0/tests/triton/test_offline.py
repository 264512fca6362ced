"""Every kernel of every plan compiles for eight GPUs, spills nothing, and matches the table."""

import csv
from pathlib import Path

import pytest
import torch
import triton
from triton.compiler import ASTSource
from triton_tools.lists import MODELS
from triton_tools.offline import TARGETS, resources, variants
from triton_tools.resources import all_variants, row_of

from specgrad_kernels.backends.triton import NEEDED_SHARED_MEMORY, binding, interpreting
from specgrad_kernels.backends.triton.compiling import gpu_target
from specgrad_kernels.spec import FilterSpec

pytestmark = pytest.mark.skipif(interpreting(), reason="compiling needs TRITON_INTERPRET unset")

TABLE = Path(__file__).parents[2] / "docs" / "gpu_resources.csv"
TABLE_MADE_WITH = "3.9.0"
with TABLE.open(newline="") as _file:
    LISTED = {
        (row["kernel"], row["sizes"], row["dtype"], row["target"]): row
        for row in csv.DictReader(_file)
    }
# All of them take an hour to compile; whoever changes a kernel writes the table anew.
COMPILED_HERE = [
    (variant, "sm_80")
    for lengths, spec in (
        *((lengths, FilterSpec()) for lengths in MODELS.values()),
        *(([36864], FilterSpec(method)) for method in ("lap", "gaussian", "centralize")),
    )
    for variant in variants(lengths, spec)
] + [
    (variants([36864], FilterSpec(method), dtype)[step], target)
    for method, dtype, step, target in (
        ("fft", torch.bfloat16, 0, "gfx1100"),
        ("fft", torch.float16, 2, "sm_120"),
        ("lap", torch.float64, 1, "sm_90"),
        ("gaussian", torch.bfloat16, 1, "gfx942"),
        ("centralize", torch.float64, 0, "sm_100"),
    )
]


@pytest.mark.parametrize(
    ("variant", "target"),
    dict.fromkeys(COMPILED_HERE),
    ids=lambda value: value if isinstance(value, str) else f"{value.kernel}-{value.label}",
)
def test_table_says_what_the_compiler_says(variant, target):
    cost = resources(variant, target)
    assert cost.spilled_bytes == 0
    assert cost.shared_bytes <= NEEDED_SHARED_MEMORY
    if triton.__version__ == TABLE_MADE_WITH:
        listed = LISTED[variant.kernel, variant.label, variant.dtype_name, target]
        assert tuple(listed.values()) == row_of(variant, target, cost)


def test_nothing_in_the_table_spills():
    for row in LISTED.values():
        assert row["spilled_bytes"] == "0", row
        assert int(row["shared_bytes"]) <= NEEDED_SHARED_MEMORY


def test_table_lists_every_kernel_in_every_dtype_on_every_target():
    assert set(LISTED) == {
        (v.kernel, v.label, v.dtype_name, t) for v in all_variants() for t in TARGETS
    }


@pytest.mark.parametrize("target", TARGETS)
def test_addresses_can_be_arguments(target):
    signature = {"table_ptr": "*i64", "addresses": ("i64",) * binding.MAX_ADDRESSES}
    source = ASTSource(binding.store_addresses, signature)
    compiled = triton.compile(source, target=gpu_target(target), options={"num_warps": 1})
    assert compiled.metadata.shared == 0
