"""The native backend's report, memory and environment variables."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import TOLERANCE, distance, filtered, needs_long_double, truth
from representatives import only

from specgrad_kernels import FilterPlan, FilterSpec, design, filter_grads_
from specgrad_kernels.backends import cpp

MIB = 2**20
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

pytestmark = pytest.mark.usefixtures("native")


def inputs(d, cutoff):
    """White noise, a constant that no binary float holds, and waves inside the removed band."""
    sample = torch.arange(d, dtype=torch.float64)
    yield torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    yield torch.full((d,), 0.1, dtype=torch.float64)
    for wave in {min(3, cutoff - 1), cutoff - 1}:
        yield torch.cos(2 * torch.pi * wave * sample / d + 0.3)


def without_low_bins(signal, cutoff):
    spectrum = np.fft.rfft(signal)
    spectrum[:cutoff] = 0
    return np.fft.irfft(spectrum, n=len(signal))


def without_average(signal, weights):
    inside = np.convolve(np.ones_like(signal), weights, "same")
    return signal - np.convolve(signal, weights, "same") / inside


def measured_error(grad, exact_filter, **options):
    """Distance to the filter in long double, over the norm of the input."""
    exact = grad.double().numpy().astype(np.longdouble)
    filter_grads_([grad], backend="cpp", **options)
    error = grad.double().numpy().astype(np.longdouble) - exact_filter(exact)
    return float(np.linalg.norm(error) / np.linalg.norm(exact))


@needs_long_double
@pytest.mark.parametrize("dtype", only([torch.float32, torch.float64], DTYPES), ids=str)
@pytest.mark.parametrize(
    ("strategy", "named", "d", "ratio"),
    [
        ("dense", "dense", 97, 0.3),
        ("dense", "dense", 2304, 0.3),
        ("dense", "dense", 100_003, 1e-4),
        ("band", "band", 2304, 0.05),
        ("band", "band", 36_864, 0.05),
        ("full", "full", 2304, 0.3),
        ("full", "full", 31**3, 0.05),
        ("full", "padded", 10_007, 0.3),
        ("full", "padded", 100_003, 0.05),
    ],
)
def test_error_bound_of_fft_holds(strategy, named, d, ratio, dtype):
    spec = FilterSpec(ratio=ratio, strategy=strategy)
    described, bound, _ = cpp.explain(spec, d, 0, dtype)
    assert described.startswith(named)
    for signal in inputs(d, spec.cutoff(d)):
        error = measured_error(
            signal.to(dtype),
            lambda exact: without_low_bins(exact, spec.cutoff(d)),
            ratio=ratio,
            strategy=strategy,
        )
        assert error <= bound


@needs_long_double
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [{"window": 3}, {"window": 25}, {"window": 2001}, {"sigma": 1.0}, {"sigma": 375.0}],
    ids=str,
)
def test_error_bound_of_detrending_holds(options, dtype):
    d = 5003
    method = "lap" if "window" in options else "gaussian"
    spec = FilterSpec(method=method, **options)
    _, bound, _ = cpp.explain(spec, d, 0, dtype)
    if method == "lap":
        weights = np.ones(options["window"], np.longdouble)
    else:
        radius = int(np.ceil(4 * options["sigma"]))
        steps = np.arange(-radius, radius + 1, dtype=np.longdouble)
        weights = np.exp(-((steps / np.longdouble(options["sigma"])) ** 2) / 2)
    for signal in inputs(d, 10):
        error = measured_error(
            signal.to(dtype),
            lambda exact: without_average(exact, weights),
            method=method,
            **options,
        )
        assert error <= bound


def test_long_layers_lose_a_few_bins_as_accurately_as_short_ones():
    """A few bins are taken out by plain scalar products, here of a million terms."""
    grad = torch.full((2**20,), 0.1)
    norm = grad.norm()
    filter_grads_([grad], ratio=2.5e-6, backend="cpp")
    assert grad.norm() < 4e-7 * norm


def test_workspace_of_a_window_wider_than_the_layer():
    wide, widest = FilterSpec("lap", window=999_999), FilterSpec("lap", window=199)
    assert cpp.explain(wide, 100, 0, torch.float32) == cpp.explain(widest, 100, 0, torch.float32)
    gaussian = FilterSpec("gaussian", sigma=1e6)
    assert cpp.explain(gaussian, 100, 0, torch.float32)[2] < 100_000
    plan = FilterPlan([("layer", torch.nn.Parameter(torch.zeros(100)))], wide)
    assert plan.layers[0].workspace_bytes < 100_000


def test_tables_are_forgotten_beyond_64_mib():
    cpp.release_memory()
    grad = torch.randn(2**18)
    for step in range(12):  # 7 MiB of tables each, for the same 4 bins
        ratio = (4 + step / 20) / (2**17 + 1)
        filter_grads_([grad], ratio=ratio, strategy="dense", backend="cpp")
    tables, workspaces = cpp.release_memory()
    assert 56 * MIB < tables <= 64 * MIB
    assert workspaces >= MIB
    assert cpp.release_memory() == (0, 0)


def test_the_tables_at_hand_are_kept_however_large():
    cpp.release_memory()
    large = torch.zeros(2**18, dtype=torch.float64)
    for small in (torch.zeros(4099), torch.zeros(4098)):
        filter_grads_([small], backend="cpp")
    filter_grads_([large], ratio=20 / 2**17, strategy="dense", backend="cpp")
    filter_grads_([large], ratio=20 / 2**17, strategy="dense", backend="cpp")
    assert cpp.release_memory()[0] // MIB == 78  # of 39 vectors, and of nothing else


def test_many_separate_dimensions(backend):
    """Eighteen dimensions, no two of them one run in memory."""
    shape = (2,) * 18
    grad = torch.randn(2**18).view(shape).permute(*range(17, -1, -1))
    expected = grad.contiguous()
    filter_grads_([expected, torch.ones(100)], backend=backend)
    for chosen in ("auto", backend):
        copy = torch.empty_strided(grad.shape, grad.stride()).copy_(grad)
        filter_grads_([copy, torch.ones(100)], nonfinite="raise", backend=chosen)
        torch.testing.assert_close(copy, expected, rtol=0, atol=1e-5)


def run_with_isa(name, *arguments):
    environment = {**os.environ, "SPECGRAD_ISA": name}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.exhaustive
def test_unknown_instruction_sets_are_refused_at_import():
    refused = run_with_isa("AVX2", "-c", "import specgrad_kernels")
    assert refused.returncode != 0
    sentence = refused.stderr.splitlines()[-1]
    assert sentence.startswith("ValueError: SPECGRAD_ISA must be one of")
    assert sentence.endswith("on this CPU, or unset; got 'AVX2'")


def test_the_command_refuses_them_in_a_sentence():
    refused = run_with_isa("sse9", "-m", "specgrad_kernels")
    assert refused.returncode != 0
    assert refused.stderr.startswith("error: SPECGRAD_ISA must be one of")
    assert len(refused.stderr.splitlines()) == 1


def test_no_bit_depends_on_the_threads_of_a_process():
    """Neither on those of the filter nor on those of NumPy, which the design is computed with."""
    script = """
import hashlib, numpy, torch
from specgrad_kernels import filter_grads_
draw = numpy.random.default_rng(0).standard_normal
digest = hashlib.sha256()
for d, ratio in ((2304, 0.05), (4608, 0.2), (36864, 0.05), (36864, 0.01), (8 * 2027, 0.05)):
    grads = [torch.from_numpy(draw(d)).to(dtype) for dtype in (torch.float64, torch.float32)]
    filter_grads_(grads, ratio=ratio)
    for grad in grads:
        digest.update(grad.numpy().tobytes())
print(digest.hexdigest())
"""
    printed = set()
    for threads in ("1", "3"):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, threads)}
        command = [sys.executable, "-c", script]
        printed.add(subprocess.run(command, env=environment, capture_output=True).stdout)
    assert len(printed) == 1
    assert len(printed.pop()) > 60


@pytest.mark.parametrize("problem", only(["foreign"], ["missing", "foreign"]))
def test_the_kernels_do_not_depend_on_the_pybind_module(problem, tmp_path):
    """It may have been built for another Python; only the report uses it."""
    script = f"""
import sys
if {problem!r} == "missing":
    sys.modules["specgrad_kernels._cpu"] = None
else:
    class Foreign:
        def find_spec(self, name, path=None, target=None):
            if name == "specgrad_kernels._cpu":
                raise ImportError("module use of python399.dll conflicts with this version")
    sys.meta_path.insert(0, Foreign())
import specgrad_kernels as s
from specgrad_kernels.__main__ import machine_report
assert "cpp" in s.available_backends()
assert "CPU instructions used:" in machine_report()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SANITIZERS = re.findall(r"lib([at]san)", os.environ.get("LD_PRELOAD", ""))


@pytest.mark.skipif(not SANITIZERS, reason="only make sanitize preloads one")
def test_the_library_under_a_sanitizer_was_built_with_it():
    (library,) = Path(cpp.__file__).parent.parent.glob("_kernels*.so")
    assert f"__{SANITIZERS[0]}_init".encode() in library.read_bytes()


def drawn(d, seed, dtype=torch.float32, factor=1.0, mean=0.0):
    generator = torch.Generator().manual_seed(seed)
    return (factor * torch.randn(d, dtype=torch.float64, generator=generator) + mean).to(dtype)


@pytest.mark.parametrize("d", [2304, 4608, 9216, 36864])
def test_waves_of_the_band_leave_no_more_than_rounding(d):
    """They outweigh the rest of real gradients: 2e-7 of aliases, and some 1.5 units of rounding."""
    cutoff = FilterSpec().cutoff(d)
    sample = torch.arange(d, dtype=torch.float64)
    for k in range(1, cutoff, max(1, cutoff // 20)):
        wave = torch.cos(2 * torch.pi * k * sample / d + 1).float()
        error = filtered(wave, backend="cpp").double() - truth(wave)
        assert error.norm() < 3.8e-7 * wave.double().norm(), k


@pytest.mark.parametrize("mean", [10.0, -1e4])
@pytest.mark.parametrize(
    ("strategy", "d"),
    [
        *(("auto", d) for d in (432, 2304, 4608, 9216, 18_432, 36_864)),
        ("dense", 432),
        ("full", 432),
        ("full", 2304),
        ("full", 10_007),
    ],
)
def test_a_mean_that_dwarfs_the_rest_costs_no_digits(strategy, d, mean):
    """The rest is filtered as if it were alone, where torch.fft rounds with the mean."""
    for seed in range(4):
        signal = drawn(d, seed, mean=mean)
        exact = truth(signal)
        error = distance(filtered(signal, strategy=strategy, backend="cpp"), exact)
        assert error < min(5e-7, distance(filtered(signal, backend="torch"), exact) / 2)


def test_a_large_mean_leaves_strided_and_float64_gradients_too():
    for dtype, bound in ((torch.float32, 5e-7), (torch.float64, 1e-14)):
        signal = drawn(4608, 0, dtype, mean=1e4).view(32, 16, 9)
        strided = signal.transpose(0, 2).contiguous().transpose(0, 2)
        expected = filtered(signal, backend="cpp")
        assert torch.equal(filtered(strided, backend="cpp"), expected)
        wide = signal.double() - 1e4  # exactly
        assert distance(expected, truth(wide)) < bound


def test_a_mean_that_is_not_removed_stays():
    signal = drawn(2304, 0, mean=1e4)
    gains = [(0, 0.25), (0.05, 1)]
    actual = filtered(signal, method="spectrum", gains=gains, backend="cpp")
    exact = truth(signal, method="spectrum", gains=gains)
    assert exact.mean() > 2000
    assert distance(actual, exact) < TOLERANCE[torch.float32]


def test_eight_samples_that_agree_are_no_mean():
    """The promise holds where those that are looked at stand out from all others."""
    d, spec = 36_864, FilterSpec(ratio=0.05)
    signal = drawn(d, 0)
    signal[:: d // 8] = 1e6
    _, bound, _ = cpp.explain(spec, d, 0, torch.float32)
    actual, exact = filtered(signal, backend="cpp"), truth(signal)
    assert (actual.double() - exact).norm() <= bound * signal.double().norm()


def test_a_mean_near_the_largest_number_leaves_finite_ones():
    signal = torch.full((100,), 1e37)
    filter_grads_([signal], ratio=0.05, backend="cpp")
    assert signal.abs().max() < 1e31


SMALLEST = torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("factor", [1e-38, 1e-40, 1e-42])
@pytest.mark.parametrize("d", [7, 432, 1000, 2304, 10_007, 36_864])
def test_the_whole_spectrum_of_numbers_below_the_smallest_normal_one(d, factor):
    """They have no digits to lose, and transforms work on larger ones, as those of torch.fft do."""
    errors = {"cpp": 0.0, "torch": 0.0}
    for seed in range(4):
        signal = drawn(d, seed, factor=factor)
        exact = truth(signal, ratio=0.3)
        for backend in errors:
            strategy = "full" if backend == "cpp" else "auto"
            actual = filtered(signal, ratio=0.3, strategy=strategy, backend=backend)
            errors[backend] += (actual.double() - exact).square().mean().item() / 4
    # a rounding to a multiple of the smallest number is off by the root of a twelfth of it
    assert errors["cpp"] ** 0.5 < 1.25 * errors["torch"] ** 0.5 + 0.1 * SMALLEST


@pytest.mark.parametrize("d", [2304, 36_864])
def test_the_band_of_numbers_below_the_smallest_normal_one(d):
    """Six or seven values of the coarse grid are subtracted, each with a rounding of its own."""
    signal = drawn(d, 0, factor=1e-40)
    actual, exact = filtered(signal, strategy="band", backend="cpp"), truth(signal)
    assert (actual.double() - exact).square().mean().sqrt() < SMALLEST


def test_what_layers_of_more_than_two_billion_samples_need(monkeypatch):
    """Next to nothing with prime factors below 1024; a prime needs tables that may not fit the
    memory, and nothing is written then."""
    spec = FilterSpec(ratio=1e-4)
    strategy, bound, workspace = cpp.explain(spec, 2**31 + 128, 0, torch.float32)
    assert strategy.startswith("band")
    assert bound < 5e-6
    assert workspace < 0.02 * 4 * (2**31 + 128)

    def exhausted(*_):
        raise MemoryError("Unable to allocate 16.0 GiB for an array")

    monkeypatch.setattr(design, "_padded_gains", exhausted)
    with pytest.raises(MemoryError, match="a layer of 2147483659 samples do not fit the memory"):
        cpp.explain(spec, 2**31 + 11, 0, torch.float32)
    grad = torch.randn(10_037)
    before = grad.clone()
    with pytest.raises(MemoryError, match=r"10037 samples .*; leave the layer out, or"):
        filter_grads_([grad], backend="cpp")
    assert torch.equal(grad, before)
