"""The backend where there is no GPU: reasons, plans, schedules, compiling ahead of time."""

import subprocess
import sys
import threading
import time
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from triton_tools.lists import MODELS

from specgrad_kernels import FilterPlan, FilterSpec, backends, design, filter_grads_
from specgrad_kernels.backends import BACKENDS, triton
from specgrad_kernels.backends.triton import (
    compiling,
    precompile,
    schedule,
    signals,
    tables,
    targets,
)
from specgrad_kernels.backends.triton.coarse_grid import LINE_LOGS, WIDE_LINE, plan_grid

without_gpu = pytest.mark.skipif(
    torch.cuda.is_available() or triton.interpreting(), reason="a GPU or the interpreter is there"
)


@pytest.fixture
def _forget_problem():
    triton.why_not.cache_clear()
    yield
    triton.why_not.cache_clear()


def test_it_is_the_first_choice():
    assert BACKENDS[0].NAME == "triton"


@without_gpu
def test_without_a_gpu_auto_falls_back_and_a_name_raises():
    assert "no GPU" in triton.why_not()
    grad = torch.randn(432)
    expected = grad.clone()
    filter_grads_([grad])
    filter_grads_([expected], backend="torch")
    assert (grad - expected).norm() <= 1e-6 * expected.norm()
    with pytest.raises(RuntimeError, match="it filters GPU tensors; these are on cpu"):
        filter_grads_([grad], backend="triton")


@pytest.mark.usefixtures("_forget_problem")
def test_without_triton_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda name: None)
    assert "pip install triton" in triton.why_not()


def _card(**properties):
    values = {"name": "Card", "major": 8, "minor": 0, "shared_memory_per_block_optin": 1 << 17}
    return lambda index: SimpleNamespace(**(values | properties))


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({"major": 7, "minor": 0}, "compute capability 7.0"),
        ({"shared_memory_per_block_optin": 1 << 14}, "16,384 bytes of shared memory"),
    ],
)
def test_unfit_cards_are_refused_in_a_sentence(monkeypatch, properties, sentence):
    monkeypatch.setattr(torch.cuda, "get_device_properties", _card(**properties))
    assert sentence in triton.device_problem(0)


def _use_launcher(monkeypatch, get_current_target):
    active = SimpleNamespace(get_current_target=get_current_target)
    monkeypatch.setattr("triton.runtime.driver", SimpleNamespace(active=active))
    monkeypatch.setattr(compiling, "hash_triton", lambda: None)


@pytest.fixture
def _two_cards(monkeypatch, _forget_problem):
    """A machine with an old card beside a fit one, on which Triton works."""
    cards = [_card(major=7, minor=0)(0), _card()(1)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(triton, "interpreting", lambda: False)
    _use_launcher(monkeypatch, str)
    backends.choose.cache_clear()
    yield
    backends.choose.cache_clear()


@pytest.mark.usefixtures("_two_cards")
def test_an_old_card_does_not_rule_out_the_other():
    assert triton.why_not() is None
    assert "7.0" in triton.unsupported_reason(FilterSpec(), torch.device("cuda:0"))
    assert triton.unsupported_reason(FilterSpec(), torch.device("cuda:1")) is None
    assert backends.choose("auto", FilterSpec(), torch.device("cuda:0")).NAME == "torch"
    assert backends.choose("auto", FilterSpec(), torch.device("cuda:1")) is triton.UNDER_AUTO
    assert backends.choose("triton", FilterSpec(), torch.device("cuda:1")) is triton
    with pytest.raises(RuntimeError, match=r"compute capability 7\.0"):
        backends.choose("triton", FilterSpec(), torch.device("cuda:0"))


@pytest.mark.usefixtures("_two_cards")
def test_without_a_compiler_auto_falls_back_and_the_reason_is_kept(monkeypatch):
    def fail():
        raise RuntimeError("Failed to find C compiler.")

    _use_launcher(monkeypatch, fail)
    device = torch.device("cuda:1")
    assert backends.choose("auto", FilterSpec(), device).NAME == "torch"
    assert "find C compiler" in backends.report()["triton"]
    with pytest.raises(RuntimeError, match="apt install gcc"):
        backends.choose("triton", FilterSpec(), device)


def test_controls_and_cpu_tensors_are_left_to_others(monkeypatch):
    monkeypatch.setattr(triton, "interpreting", lambda: False)
    assert "control" in triton.unsupported_reason(FilterSpec(method="l2"), torch.device("cuda"))
    assert "cpu" in triton.unsupported_reason(FilterSpec(), torch.device("cpu"))


def test_filtering_cpu_tensors_asks_nothing_about_gpus(monkeypatch):
    backends.choose.cache_clear()
    monkeypatch.setattr(triton, "interpreting", lambda: False)
    for name in ("is_available", "device_count", "get_device_properties", "init"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("a GPU was asked for"))
    filter_grads_([torch.randn(432)])
    backends.choose.cache_clear()


def test_the_cuda_key_of_the_operator_is_ours():
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    assert has_kernel("specgrad::filter_grads_", "CUDA")


def test_triton_is_not_imported_before_it_is_needed():
    kernels = "specgrad_kernels.backends.triton.cells"
    code = f"import specgrad_kernels, sys; sys.exit({kernels!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("length", "dtype", "strategy"),
    [
        (36864, torch.float32, "band 8 x 9 x 512"),
        (2359296, torch.float32, "band 8 x 9 x 64 x 512"),
        (432, torch.float32, "circulant 8 x 54"),
        (433, torch.float32, "circulant 1 x 433"),
        (36871, torch.float32, "stacked fft"),
        (30, torch.float32, "identity"),
    ],
)
def test_strategies_are_named(length, dtype, strategy):
    name, bound, workspace = triton.explain(FilterSpec(), length, 0, dtype)
    assert name == strategy
    assert 0 < bound <= 2e-7 or name in ("identity", "stacked fft")
    assert workspace <= 0.4 * 4 * length or length < 2000 or name == "stacked fft"


def test_the_promise_for_every_layer_of_the_models(monkeypatch):
    """Where grids are solved in float64, as an A100 does; other cards may be in this machine."""
    monkeypatch.setattr(targets, "all_solve_in_float64", lambda dtype: True)
    lengths = {length for model in MODELS.values() for length in model}
    bounds = [triton.explain(FilterSpec(), length, 0, torch.float32)[1] for length in lengths]
    assert 1e-7 < min(bounds) <= max(bounds) <= 2e-7


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({"major": 9, "minor": 0}, "sm_90"),
        ({"major": 8, "minor": 6}, "sm_86"),
        ({"gcnArchName": "gfx942:sramecc+:xnack-"}, "gfx942"),
    ],
)
def test_cards_slow_at_float64_promise_less(monkeypatch, properties, name):
    """The larger bound is said wherever one of the cards solves its grids in float32."""
    on_amd = "gcnArchName" in properties
    monkeypatch.setattr(torch.version, "hip", "6.2" if on_amd else None)
    cards = [_card()(0), _card(**properties)(1)] if not on_amd else [_card(**properties)(0)]
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: cards[torch.device(device).index]
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    assert targets.architecture_of(torch.device("cuda", len(cards) - 1)) == name
    bound = triton.explain(FilterSpec(), 36864, 0, torch.float32)[1]
    assert (bound <= 2e-7) is (name != "sm_86")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_promise_what_float32_grids_keep(dtype):
    """Their grids are solved in float32 on every card, so the bound for float64 is not theirs."""
    spec = FilterSpec()
    removed = spec.cutoff(36864)
    grid = plan_grid(36864, removed, False)
    stored = design.stored_rounding(dtype, 1.0)
    bound = triton.explain(spec, 36864, 0, dtype)[1]
    assert bound - stored == pytest.approx(grid.error(False), rel=1e-3)
    assert grid.error(False) > 1.5 * grid.error(True)


def test_detrend_is_named_with_its_radius():
    name, _, workspace = triton.explain(FilterSpec(method="lap"), 36864, 0, torch.float32)
    assert name == "tiles, radius 12"
    assert 0 < workspace < 0.02 * 4 * 36864


def test_describe_counts_launches(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3), torch.nn.Conv2d(16, 16, 3))
    plan = FilterPlan.for_model(model)
    monkeypatch.setattr(FilterPlan, "_choose_backend", lambda plan: triton.UNDER_AUTO)
    assert plan.describe().endswith("4,608 weights, fft on triton, 3 launches")


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("length", [432, 2304, 36864, 98304])
def test_gains_invert_the_window(length, double):
    """On a pure wave of the band, spread, gain and interpolation give the wave back."""
    cutoff = length // 40
    grid = plan_grid(length, cutoff, double)
    taps = grid.window.taps()
    start = -grid.window.width * grid.hop // 2
    cells = np.arange(grid.cells)[:, None] * grid.hop + start + np.arange(len(taps))
    for k in {0, cutoff // 2, cutoff - 1}:
        wave = np.cos(2 * np.pi / length * (k * np.arange(length) % length) + 0.3)
        coarse = (wave[cells % length] * taps).sum(axis=1)
        solved = np.fft.irfft(
            np.fft.rfft(coarse) * tables.gains(grid, np.ones(cutoff)) * grid.cells, n=grid.cells
        )
        back = np.zeros(length)
        np.add.at(back, cells % length, taps * solved[:, None])
        assert np.linalg.norm(back - wave) < (grid.window.aliasing + 1e-14) * np.linalg.norm(wave)


@pytest.mark.parametrize("log", LINE_LOGS)
def test_every_bin_of_a_line_is_somewhere(log):
    lanes = 256 if log == WIDE_LINE else 64
    order = tables.bin_order(log, lanes).T.reshape(-1, 1 << log)
    assert (np.sort(order, axis=1) == np.arange(1 << log)).all()


def test_offsets_beyond_32_bits_are_refused():
    assert schedule._launch("spread", [{"GRID": 2**31 - 1}]).programs.max() == 2**31 - 1
    with pytest.raises(ValueError, match="in several calls"):
        schedule._launch("spread", [{"GRID": 2**31}])


def test_warps_follow_the_wave_size():
    """A thread of ``interpolate`` has 16 bytes of a cell, on waves of 64 threads too."""
    sizes = {"HOP": 8, "WIDTH": 8, "ROWS": 64}
    for target, warps in {"sm_80": 4, "gfx1100": 4, "gfx942": 2}.items():
        options = targets.options_of("interpolate", sizes, torch.float32, target)
        assert options["num_warps"] == warps


def test_compiling_goes_on_side_by_side_and_says_how_far_it_is(capsys):
    wanted = compiling.variants(MODELS["resnet20"], FilterSpec())
    together = threading.Barrier(2, timeout=30)

    def compile_one(variant):
        if variant.kernel != "spread":
            together.wait()  # two at a time, or never
        return variant.kernel

    assert compiling.side_by_side(wanted, compile_one) == ["spread", "filter_grid", "interpolate"]
    assert not capsys.readouterr().err
    assert compiling.side_by_side(wanted, lambda variant: time.sleep(0.05), quiet=0) == [None] * 3
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    assert "compiling 3 GPU kernels" in said[0]
    assert "3 of 3" in said[3]


def test_kernels_side_by_side_wait_for_one_hash_of_triton(monkeypatch):
    hashed = []

    def hash_slowly():
        time.sleep(0.1)
        hashed.append(1)

    monkeypatch.setattr(compiling.runtime_cache, "triton_key", hash_slowly)
    monkeypatch.setattr(compiling, "hash_triton", cache(compiling.hash_triton.__wrapped__))
    monkeypatch.setattr(compiling.triton, "compile", lambda *_, **__: len(hashed))
    compiling.hash_triton()
    wanted = compiling.variants(MODELS["resnet20"], FilterSpec())
    compile_one = partial(compiling.compile_offline, architecture="sm_80")
    assert compiling.side_by_side(wanted, compile_one) == [1, 1, 1]


def test_a_kernel_that_cannot_be_compiled_raises_when_the_others_are_done():
    wanted = compiling.variants(MODELS["resnet20"], FilterSpec())
    done = []

    def compile_one(variant):
        if variant.kernel == "filter_grid":
            raise ValueError("planted")
        done.append(variant.kernel)

    with pytest.raises(ValueError, match="planted"):
        compiling.side_by_side(wanted, compile_one)
    assert sorted(done) == ["interpolate", "spread"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "a100"], "like sm_80, sm_90 or gfx942; got 'a100'"),
        (["--model", "alexnet"], "alexnet"),
        ([], "name one, such as --target sm_90"),
    ],
)
@without_gpu
def test_what_cannot_be_compiled_ahead_is_said(capsys, arguments, message):
    with pytest.raises(SystemExit):
        precompile.main(arguments)
    assert message in capsys.readouterr().err


def test_strides_that_merge_are_merged():
    grad = torch.empty(4, 6, 5).permute(1, 0, 2)
    assert signals.collapse(grad.shape, grad.stride()) == ([6, 4, 5], [5, 30, 1])
    assert signals.collapse((3, 1, 4), (4, 99, 1)) == ([12], [1])


def test_the_documentation_says_first_that_no_gpu_was_at_hand():
    text = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    assert "No GPU was at hand" in " ".join(text.splitlines()[:4])
