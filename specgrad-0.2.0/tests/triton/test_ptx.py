"""The compiled PTX, executed on the CPU, against the float64 reference."""

import numpy as np
import pytest
import torch
from representatives import only
from triton_tools.compare import random_grads, reference
from triton_tools.execute import execute
from triton_tools.ptx import PtxError, PtxKernel
from triton_tools.rounding import Rounded

from specgrad_kernels.backends.triton import interpreting
from specgrad_kernels.spec import FilterSpec

pytestmark = pytest.mark.skipif(interpreting(), reason="compiling needs TRITON_INTERPRET unset")

TOLERANCE = {
    torch.float32: 2e-7,
    torch.float64: 1e-14,
    torch.bfloat16: torch.finfo(torch.bfloat16).eps,
    torch.float16: torch.finfo(torch.float16).eps,
}


def _errors(grads, spec, target="sm_80"):
    exact = reference(grads, spec)
    names = execute(grads, spec, target)
    errors = [
        float((grad.double() - truth).norm() / truth.norm())
        for grad, truth in zip(grads, exact, strict=True)
    ]
    return max(errors), names


BAND = ["spread", "filter_grid", "interpolate"]


@pytest.mark.parametrize("dtype", only([torch.float32], TOLERANCE), ids=str)
def test_band(dtype):
    error, names = _errors(random_grads([432, 2304], dtype), FilterSpec())
    assert names == BAND
    assert error < TOLERANCE[dtype]


def test_the_search_for_the_worst_wave_rounds_like_the_kernels():
    """A constant and a wave of the band, of which only rounding is left."""
    for length in (432, 2304):
        rounded = Rounded(length)
        waves = rounded.waves([0, 5])
        grads = [torch.from_numpy(wave.copy()) for wave in waves]
        execute(grads, FilterSpec())
        for grad, wave, expected in zip(grads, waves, rounded.run(waves), strict=True):
            # which of two products is rounded first is up to the compiler
            assert np.linalg.norm(grad.numpy() - expected) < 3e-8 * np.linalg.norm(wave)


def test_band_of_strided_and_unaligned_layers_beside_a_plain_one():
    grads = random_grads([(16, 3, 3, 3), 2304, 433])
    grads[0] = grads[0].to(memory_format=torch.channels_last)
    grads[2] = grads[2][1:]
    error, names = _errors(grads, FilterSpec())
    assert names == BAND
    assert error < TOLERANCE[torch.float32]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("ratio", "dtype"), [(0.1, torch.bfloat16), (0.2, torch.float32)], ids=str)
def test_band_with_shorter_cells(ratio, dtype):
    error, names = _errors(random_grads([432], dtype), FilterSpec(ratio=ratio))
    assert names == BAND
    assert error < TOLERANCE[dtype]


def test_band_with_split_lines(limit_grid):
    limit_grid(lines=(3,))
    error, names = _errors(random_grads([1536]), FilterSpec())
    assert names == ["spread", "second_factor", "filter_grid", "second_factor", "interpolate"]
    assert error < TOLERANCE[torch.float32]


DETRENDED = [torch.float32, torch.float64, torch.float16]


@pytest.mark.parametrize("dtype", only([torch.float32], DETRENDED), ids=str)
@pytest.mark.parametrize("method", ["lap", "gaussian"])
def test_detrend(method, dtype):
    error, names = _errors(random_grads([4100], dtype), FilterSpec(method=method))
    assert names == ["save_borders", "subtract_smooth"]
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("boundary", only(["reflect"], ["circular", "reflect", "replicate"]))
def test_detrend_in_one_tile(boundary):
    error, names = _errors(random_grads([100]), FilterSpec(method="lap", boundary=boundary))
    assert names == ["subtract_smooth"]
    assert error < TOLERANCE[torch.float32]


@pytest.mark.exhaustive
def test_band_where_float64_is_slow():
    error, names = _errors(random_grads([432, 2304]), FilterSpec(), "sm_86")
    assert names == BAND
    assert error < TOLERANCE[torch.float32]


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
@pytest.mark.parametrize("spec", [FilterSpec(), FilterSpec("lap"), FilterSpec("gaussian")])
def test_code_for_other_targets(spec, target):
    error, _ = _errors(random_grads([432]), spec, target)
    assert error < TOLERANCE[torch.float32]


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_on_sm_75(dtype):
    """It rounds to bfloat16 by integer instructions, having none for that."""
    for spec in (FilterSpec(), FilterSpec("lap")):
        error, _ = _errors(random_grads([432], dtype), spec, "sm_75")
        assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", only([torch.float32], [torch.float32, torch.bfloat16]), ids=str)
def test_means(dtype):
    grads = random_grads([(2, 16, 3, 3), (3, 5)], dtype)
    spec = FilterSpec("centralize")
    exact = reference(grads, spec)
    assert execute(grads, spec) == ["subtract_means"]
    for grad, truth in zip(grads, exact, strict=True):
        assert (grad.double() - truth).norm() < TOLERANCE[dtype] * truth.norm()


ENTRY = """
.visible .entry k(
	.param .u64 k_param_0
)
.reqntid 32
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<4>;
	ld.param.b64 	%rd1, [k_param_0];
	mov.u32 	%r1, %tid.x;
	mad.wide.s32 	%rd2, %r1, 4, %rd1;
BODY
	ret;
}
"""


def _run(body, elements=32):
    x = torch.arange(elements, dtype=torch.int32)
    PtxKernel(ENTRY.replace("BODY", body), 64).run(1, [x], [])
    return x


def test_divergent_threads_meet_again():
    body = """
	setp.lt.s32 	%p1, %r1, 8;
	mov.b32 	%r2, 5;
	@%p1 bra 	$L__far;
	add.s32 	%r2, %r2, 1;
$L__far:
	bar.sync 	0;
	st.global.b32 	[%rd2], %r2;"""
    assert _run(body).tolist() == [5] * 8 + [6] * 24


def test_accesses_outside_the_tensor_are_refused():
    with pytest.raises(PtxError, match="outside"):
        _run("\tst.global.b32 \t[%rd2+4], %r1;")


@pytest.mark.parametrize("line", ["popc.b32 %r2, %r1;", "add.sat.s32 %r2, %r1, %r1;"])
def test_unknown_instructions_are_refused(line):
    with pytest.raises(PtxError, match="unknown"):
        _run("\t" + line)


def test_a_barrier_that_not_all_reach_is_refused():
    body = """
	setp.lt.s32 	%p1, %r1, 8;
	@%p1 ret;
	bar.sync 	0;"""
    with pytest.raises(PtxError, match="part of the threads"):
        _run(body)


def test_registers_must_be_written_first():
    with pytest.raises(PtxError, match="before it is written"):
        _run("\tst.global.b32 \t[%rd2], %r7;")
