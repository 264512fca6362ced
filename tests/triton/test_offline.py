"""Every kernel of every plan compiles for eight GPUs, spills nothing, and matches the table."""

import csv
from pathlib import Path

import pytest
import torch
import triton
from triton.compiler import ASTSource
from triton_tools.offline import TARGETS, resources, variants
from triton_tools.resources import model_variants, needed, row_of

from specgrad_kernels.backends.triton import NEEDED_SHARED_MEMORY, handles, interpreting
from specgrad_kernels.spec import FilterSpec

pytestmark = pytest.mark.skipif(interpreting(), reason="compiling needs TRITON_INTERPRET unset")

TABLE = Path(__file__).parents[2] / "docs" / "gpu_resources.csv"
TABLE_MADE_WITH = "3.9.0"
with TABLE.open(newline="") as _file:
    LISTED = {
        (row["kernel"], row["sizes"], row["dtype"], row["target"]): row
        for row in csv.DictReader(_file)
    }
# The others take minutes to compile; whoever changes a kernel writes the table anew.
COMPILED_HERE = [v for v in model_variants() if v.dtype is torch.float32]


@pytest.mark.parametrize("variant", COMPILED_HERE, ids=lambda v: f"{v.kernel}-{v.label}")
def test_table_says_what_the_compiler_says(variant):
    cost = resources(variant, "sm_80")
    assert cost.spilled_bytes == 0
    assert cost.shared_bytes <= NEEDED_SHARED_MEMORY
    if triton.__version__ == TABLE_MADE_WITH:
        listed = LISTED[variant.kernel, variant.label, variant.name, "sm_80"]
        assert tuple(listed.values()) == row_of(variant, "sm_80", cost)


def test_nothing_in_the_table_spills():
    for row in LISTED.values():
        assert row["spilled_bytes"] == "0", row
        assert int(row["shared_bytes"]) <= NEEDED_SHARED_MEMORY


def test_table_lists_every_kernel():
    assert set(LISTED) == {(v.kernel, v.label, v.name, target) for v, target in needed()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", ["lap", "gaussian"])
def test_other_dtypes_of_the_detrend_compile(method, dtype):
    for variant in variants([433, 36864], FilterSpec(method=method), dtype):
        cost = resources(variant, "sm_80")
        assert cost.spilled_bytes == 0
        assert cost.shared_bytes <= NEEDED_SHARED_MEMORY


@pytest.mark.parametrize("target", TARGETS)
def test_addresses_can_be_arguments(target):
    signature = {"table": "*i64", "addresses": ("i64",) * handles.MOST}
    source = ASTSource(handles.store_addresses, signature)
    compiled = triton.compile(source, target=TARGETS[target], options={"num_warps": 1})
    assert compiled.metadata.shared == 0
