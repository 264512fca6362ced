"""Warps of one program on their own: races that no barrier prevents, in the executed PTX."""

import csv
from functools import partial
from pathlib import Path

import pytest
import torch
from representatives import only
from triton_tools.barriers import CASES, only_asked, run_asked
from triton_tools.compare import reference
from triton_tools.counts import barrier_rows
from triton_tools.execute import execute
from triton_tools.ptx import PtxKernel
from triton_tools.ptx.machine import Memory, tensor_bytes
from triton_tools.warps import Race, run_apart, run_together

from specgrad_kernels.backends.triton import interpreting

pytestmark = pytest.mark.skipif(interpreting(), reason="compiling needs TRITON_INTERPRET unset")
TABLE = Path(__file__).parents[2] / "docs" / "gpu_counts.csv"


@pytest.mark.exhaustive
def test_the_race_behind_every_barrier_is_found():
    """Row by row what the table of counts says, for every barrier there is."""
    with TABLE.open(newline="") as file:
        listed = {tuple(row.values()) for row in csv.DictReader(file)}
    found = barrier_rows()
    assert {value for *_, value in found} == {"1"}
    assert set(found) <= listed
    assert len(found) == sum(row[2] == "race found" for row in listed)


FIRST = list({case.kernel: case for case in reversed(CASES)}.values())


@pytest.mark.parametrize("case", only(FIRST, CASES), ids=lambda case: f"{case.kernel}-{case.name}")
def test_what_the_source_asks_for_is_enough(case):
    """No race, with all barriers and without those that the compiler has for itself."""
    for run in (run_together, run_asked):
        execute(case.grads(), case.spec, run=run, only=case.kernel)


def test_barriers_of_the_compiler_are_told_from_those_of_the_source(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("x = tl.load(p)\ntl.debug_barrier()\n")
    lines = [f'.file 1 "{source}"', ".loc 1 1 4", "bar.sync 0;", "add.s32 %r1, %r1, 1;"]
    asked = [".loc 1 2 4, function_name $L__info_string0", "bar.sync 0;"]
    kept = only_asked("\n".join([*lines, *asked, ".loc 1 1 4", "bar.sync 0;"])).splitlines()
    assert kept == [*lines[:2], lines[3], *asked, ".loc 1 1 4"]


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.kernel)
def test_nothing_races_between_barriers(case):
    """In none of the launches of a call, and its values are right."""
    grads = case.grads()
    exact = reference(grads, case.spec)
    execute(grads, case.spec, run=run_together)
    assert (grads[0].double() - exact[0]).norm() < 1e-6 * exact[0].norm()


@pytest.mark.parametrize("seed", only([0], [0, 1]))
def test_warps_in_any_order_give_the_same_values(seed):
    grads = CASES[0].grads()
    exact = reference(grads, CASES[0].spec)
    execute(grads, CASES[0].spec, run=partial(run_apart, seed=seed))
    assert (grads[0].double() - exact[0]).norm() < 1e-6 * exact[0].norm()


ENTRY = """
.visible .entry k(
	.param .u64 k_param_0
)
.reqntid 64
{
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<4>;
	ld.param.b64 	%rd1, [k_param_0];
	mov.u32 	%r1, %tid.x;
	xor.b32 	%r2, %r1, 32;
	mad.wide.s32 	%rd2, %r1, 4, %rd1;
	mad.wide.s32 	%rd3, %r2, 4, %rd1;
BODY
	ret;
}
"""
EXCHANGE = """
	ld.global.b32 	%r3, [%rd3];
{}
	st.global.b32 	[%rd2], %r3;"""


def _run(body, run):
    x = torch.arange(64, dtype=torch.int32)
    program = PtxKernel(ENTRY.replace("BODY", body), 64)
    run(program, 1, [x.data_ptr()], Memory([tensor_bytes(x)]))
    return x.tolist()


def test_an_exchange_needs_its_barrier():
    swapped = [*range(32, 64), *range(32)]
    whole = EXCHANGE.format("	bar.sync 	0;")
    assert _run(whole, run_together) == swapped
    assert _run(whole, partial(run_apart, seed=0)) == swapped
    for missing in ("", "	bar.warp.sync 	-1;"):
        with pytest.raises(Race, match="loads from global memory"):
            _run(EXCHANGE.format(missing), run_together)
        assert _run(EXCHANGE.format(missing), partial(run_apart, seed=0)) != swapped


def test_two_warps_may_store_the_same_value_only():
    body = "	mov.b32 	%r4, {};\n	st.global.b32 	[%rd1], %r4;"
    assert _run(body.format("7"), run_together)[0] == 7
    with pytest.raises(Race, match="store different values"):
        _run(
            body.format("%r1").replace("mov.b32 	%r4, %r1", "and.b32 	%r4, %r1, 32"),
            run_together,
        )


def test_a_barrier_that_one_warp_never_reaches_is_found():
    body = """
	.reg .pred 	%p<2>;
	setp.lt.s32 	%p1, %r1, 32;
	@%p1 ret;
	bar.sync 	0;"""
    with pytest.raises(Race, match="never reaches"):
        _run(body, partial(run_apart, seed=0))
