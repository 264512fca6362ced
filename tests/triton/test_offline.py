"""Every kernel of every plan compiles for eight GPUs, spills nothing, and matches the table."""

import csv
from pathlib import Path

import pytest
import torch
import triton
from triton.compiler import ASTSource
from triton_tools.offline import TARGETS, resources, variants
from triton_tools.resources import model_variants, row_of

from specgrad_kernels.backends.triton import NEEDED_SHARED_MEMORY, addresses, interpreting
from specgrad_kernels.spec import FilterSpec

pytestmark = pytest.mark.skipif(interpreting(), reason="compiling needs TRITON_INTERPRET unset")

TABLE = Path(__file__).parents[2] / "docs" / "gpu_resources.csv"
TABLE_MADE_WITH = "3.9.0"
with TABLE.open(newline="") as _file:
    LISTED = {(row["kernel"], row["sizes"], row["target"]): row for row in csv.DictReader(_file)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("variant", model_variants(), ids=lambda v: f"{v.kernel}-{v.label}")
def test_nothing_spills(variant, target):
    cost = resources(variant, target)
    assert cost.spilled_bytes == 0
    assert cost.shared_bytes <= NEEDED_SHARED_MEMORY


@pytest.mark.skipif(
    triton.__version__ != TABLE_MADE_WITH,
    reason=f"registers differ between compilers; the table is of Triton {TABLE_MADE_WITH}",
)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("variant", model_variants(), ids=lambda v: f"{v.kernel}-{v.label}")
def test_table_says_what_the_compiler_says(variant, target):
    listed = LISTED[variant.kernel, variant.label, target]
    assert tuple(listed.values()) == row_of(variant, target, resources(variant, target))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", ["fft", "lap", "gaussian"])
def test_other_dtypes_and_strides_compile(method, dtype):
    for variant in variants([433, 36864, 589824], FilterSpec(method=method), dtype, strided=True):
        cost = resources(variant, "sm_80")
        assert cost.spilled_bytes == 0
        assert cost.shared_bytes <= NEEDED_SHARED_MEMORY


@pytest.mark.parametrize("target", TARGETS)
def test_addresses_can_be_arguments(target):
    signature = {"table": "*i64", "addresses": ("i64",) * addresses.MOST}
    source = ASTSource(addresses.store_addresses, signature)
    compiled = triton.compile(source, target=TARGETS[target], options={"num_warps": 1})
    assert compiled.metadata.shared == 0


def test_table_lists_every_kernel():
    assert set(LISTED) == {(v.kernel, v.label, t) for v in model_variants() for t in TARGETS}
