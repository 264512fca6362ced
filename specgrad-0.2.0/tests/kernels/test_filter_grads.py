"""The operator against the float64 reference, and the invariants that make it a filter."""

import pytest
import torch
from helpers import DTYPES, TOLERANCE, distance, filtered, truth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from representatives import only

from specgrad_kernels import FilterSpec, filter_grads_

RESNET20 = [432] + [2304] * 6 + [4608] + [9216] * 5 + [18432] + [36864] * 5
METHODS = ("fft", "lap", "gaussian")
BOUNDARIES = ("count", "circular", "reflect", "replicate")
AWKWARD = (1, 2, 3, 5, 16, 37, 38, 39, 64, 97, 127, 128, 129, 255, 256, 1023, 2047, 4099, 10007)

relaxed = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def randn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", AWKWARD)
def test_awkward_lengths(backend, method, dtype, d):
    grad = randn(d, dtype=dtype)
    actual = filtered(grad, method=method, ratio=0.3, backend=backend)
    assert distance(actual, truth(grad, method=method, ratio=0.3)) < TOLERANCE[dtype]


@pytest.mark.parametrize("ratio", [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("d", [36864, 45056, 126976])
def test_ratios(backend, ratio, dtype, d):
    grad = randn(d, dtype=dtype)
    actual = filtered(grad, ratio=ratio, backend=backend)
    assert distance(actual, truth(grad, ratio=ratio)) < TOLERANCE[dtype]


@pytest.mark.parametrize("strategy", ["auto", "dense", "band", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("d", [1728, 2304, 6000])
def test_every_strategy_computes_the_same_filter(native, strategy, dtype, d):
    grad = randn(d, dtype=dtype)
    actual = filtered(grad, strategy=strategy, backend="cpp")
    assert distance(actual, truth(grad)) < TOLERANCE[dtype]


def test_strategy_that_does_not_fit_is_refused(native):
    grad = randn(10007)
    before = grad.clone()
    with pytest.raises(ValueError, match="strategy 'band' does not fit a layer of 10007"):
        filter_grads_([grad], strategy="band", backend="cpp")
    assert torch.equal(grad, before)


@pytest.mark.parametrize("isa", only(["portable"], ["portable", "avx2", "avx512"]))
def test_every_instruction_set(native, isa, tmp_path):
    """The portable and AVX2 kernels too, on a machine that would choose wider ones."""
    import os
    import subprocess
    import sys

    if not pytest.importorskip("specgrad_kernels._cpu").features()[isa]:
        pytest.skip(f"this CPU does not run {isa}")
    script = """
import torch
from helpers import TOLERANCE, distance, filtered, truth
from specgrad_kernels.backends import cpp
import os
assert cpp.INSTRUCTION_SET == os.environ["SPECGRAD_ISA"]
for method in ("fft", "lap", "gaussian"):
    for dtype in TOLERANCE:
        for d in (39, 1001, 2304, 10007, 36864):
            for ratio in (0.05, 0.3):
                grad = torch.randn(d, dtype=torch.float64).to(dtype)
                actual = filtered(grad, method=method, ratio=ratio, backend="cpp")
                error = distance(actual, truth(grad, method=method, ratio=ratio))
                assert error < TOLERANCE[dtype], (method, dtype, d, ratio, error)
from test_filter_grads import test_half_types_are_read_and_rounded_like_torch as half_types
for dtype in (torch.bfloat16, torch.float16):
    half_types(cpp, dtype)
"""
    own = os.path.dirname(__file__)
    path = os.pathsep.join([own, os.path.dirname(own)])
    environment = {**os.environ, "SPECGRAD_ISA": isa, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


@relaxed
@given(
    method=st.sampled_from(METHODS),
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    ratio=st.integers(0, 95).map(lambda percent: percent / 100),
    boundary=st.sampled_from(BOUNDARIES),
    data=st.data(),
)
def test_any_layout_equals_its_contiguous_copy(
    backend, method, dtype, shape, ratio, boundary, data
):
    """Permuted, sliced and padded storage give the very bits of the contiguous copy."""
    order = data.draw(st.permutations(range(len(shape))))
    steps = data.draw(st.lists(st.integers(1, 3), min_size=len(shape), max_size=len(shape)))
    storage = randn(*(n * s for n, s in zip(shape, steps, strict=True)), dtype=dtype)
    before = storage.clone()
    view = storage[tuple(slice(None, None, step) for step in steps)].permute(order)
    options = {"method": method, "ratio": ratio, "backend": backend}
    if "boundary" in FilterSpec.options_of(method):
        options["boundary"] = boundary
    expected = filtered(view.contiguous(), **options)
    filter_grads_([view], **options)
    assert torch.equal(view, expected)
    given = before[tuple(slice(None, None, s) for s in steps)].permute(order)
    exact = truth(given, **options)
    # the promise is relative to what went in, of which a few per cent may be left; below the
    # smallest normal number, rounding costs half of the smallest subnormal one
    spacing = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    largest = max(exact.norm(), given.double().norm())
    error = (view.double() - exact).norm()
    assert error < TOLERANCE[dtype] * largest + spacing / 2 * exact.numel() ** 0.5
    touched = torch.zeros_like(storage, dtype=torch.bool)
    touched[tuple(slice(None, None, step) for step in steps)] = True
    assert torch.equal(storage[~touched], before[~touched])


@pytest.mark.parametrize("method", METHODS)
def test_channels_last(backend, method):
    weight = randn(32, 16, 3, 3)
    expected = filtered(weight, method=method, backend=backend)
    strided = weight.clone(memory_format=torch.channels_last)
    assert not strided.is_contiguous()
    filter_grads_([strided], method=method, backend=backend)
    assert torch.equal(strided, expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_neighbours_are_untouched(backend, method, dtype):
    """Canaries around every tensor of one shared storage."""
    lengths = [1, 3, 38, 100, 432, 1001, 2304, 4099, 9216]
    margin = 17
    storage = torch.full((sum(lengths) + margin * (len(lengths) + 1),), 7.25, dtype=dtype)
    grads, start = [], margin
    for d in lengths:
        grads.append(storage[start : start + d])
        grads[-1].copy_(randn(d, dtype=dtype, seed=d))
        start += d + margin
    filter_grads_(grads, method=method, backend=backend)
    start = 0
    for d in lengths:
        assert bool((storage[start : start + margin] == 7.25).all())
        start += margin + d
    assert bool((storage[start:] == 7.25).all())


@pytest.mark.parametrize("method", METHODS)
def test_fused_equals_per_tensor_in_any_order(backend, method):
    grads = [randn(d, seed=i) for i, d in enumerate(RESNET20[:12])]
    grads += [randn(4, 700, dtype=torch.float64), randn(999, dtype=torch.bfloat16)]
    alone = [filtered(grad, method=method, backend=backend) for grad in grads]
    fused = [grad.clone() for grad in grads]
    filter_grads_(fused, method=method, backend=backend)
    backwards = [grad.clone() for grad in grads]
    filter_grads_(backwards[::-1], method=method, backend=backend)
    for one, two, three in zip(alone, fused, backwards, strict=True):
        if backend == "cpp":
            assert torch.equal(one, two)
            assert torch.equal(one, three)
        else:  # torch.fft may round a stack differently from a single signal
            assert distance(two, one.double()) < TOLERANCE[one.dtype]
            assert distance(three, one.double()) < TOLERANCE[one.dtype]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lengths", [RESNET20, [2_359_296], [1_000_003], [300_000, 38]], ids=len)
def test_threads_do_not_change_a_bit(native, threads, method, lengths):
    if method == "fft" and lengths == [1_000_003]:
        pytest.skip("two million point transform; covered by shorter primes")
    grads = [randn(d, seed=i) for i, d in enumerate(lengths)]
    results = []
    for count in (1, 2, 3):
        threads(count)
        copies = [grad.clone() for grad in grads]
        filter_grads_(copies, method=method, backend="cpp")
        results.append(copies)
    for one, two, three in zip(*results, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@relaxed
@given(d=st.integers(1, 3000), ratio=st.integers(0, 90).map(lambda p: p / 100))
def test_fft_is_an_orthogonal_projector(backend, d, ratio):
    options = {"ratio": ratio, "backend": backend}
    x, y = randn(d, dtype=torch.float64, seed=1), randn(d, dtype=torch.float64, seed=2)
    fx, fy = filtered(x, **options), filtered(y, **options)
    scale = float(d)
    assert (filtered(fx, **options) - fx).norm() < 1e-12 * scale  # idempotent
    assert abs(torch.dot(fx, y) - torch.dot(x, fy)) < 1e-11 * scale  # symmetric
    removed = x - fx
    assert abs(x.norm() ** 2 - fx.norm() ** 2 - removed.norm() ** 2) < 1e-11 * scale  # Parseval
    cutoff = FilterSpec(ratio=ratio).cutoff(d)
    if cutoff:
        assert torch.fft.rfft(fx)[:cutoff].abs().max() < 1e-11 * scale
        assert torch.fft.rfft(removed)[cutoff:].abs().sum() < 1e-9 * scale


@relaxed
@given(method=st.sampled_from(METHODS), d=st.integers(1, 2000), a=st.floats(-3, 3))
def test_linearity(backend, method, d, a):
    options = {"method": method, "ratio": 0.1, "backend": backend}
    x, y = randn(d, dtype=torch.float64, seed=1), randn(d, dtype=torch.float64, seed=2)
    together = filtered(x + a * y, **options)
    separate = filtered(x, **options) + a * filtered(y, **options)
    assert (together - separate).norm() < 1e-11 * (x.norm() + abs(a) * y.norm())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("d", [39, 432, 1001, 2304, 10007, 36864])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_constants_vanish(backend, method, d, dtype):
    constant = torch.full((d,), -2.5, dtype=dtype)
    filter_grads_([constant], method=method, backend=backend)
    assert constant.norm() < 2.5 * d**0.5 * (2e-6 if dtype == torch.float32 else 1e-13)


@pytest.mark.parametrize("method", [*METHODS, "fft_high", "random", "l2"])
@pytest.mark.parametrize(("d", "ratio"), [(37, 0.05), (1, 0.9), (5000, 0.0), (100, 0.019)])
def test_cutoff_zero_is_the_identity(method, d, ratio):
    grad = randn(d)
    assert torch.equal(filtered(grad, method=method, ratio=ratio), grad)


def test_in_place_really(backend):
    grads = [randn(64, 16, 3, 3), randn(500, dtype=torch.bfloat16)]
    pointers = [grad.data_ptr() for grad in grads]
    versions = [grad._version for grad in grads]
    assert filter_grads_(grads, backend=backend) is None
    assert [grad.data_ptr() for grad in grads] == pointers
    assert all(g._version > v for g, v in zip(grads, versions, strict=True))


def test_stack_of_clients(backend):
    stack = randn(7, 16, 8, 3, 3)
    alone = [filtered(client, backend=backend) for client in stack]
    strided = randn(7, 16, 8, 3, 3).transpose(0, 1)
    strided_alone = [filtered(client.contiguous(), backend=backend) for client in strided]
    filter_grads_([stack, strided], batch_dims=1, backend=backend)
    for actual, expected in [(stack, alone), (strided, strided_alone)]:
        for client, one in zip(actual, expected, strict=True):
            assert distance(client, one.double()) < 3e-7


def test_one_ratio_per_tensor(backend):
    grads = [randn(4000, seed=i) for i in range(3)]
    ratios = [0.1, 0.0, 0.4]
    expected = [truth(grad, ratio=r) for grad, r in zip(grads, ratios, strict=True)]
    copies = [grads[0].clone(), None, grads[1].clone(), grads[2].clone()]
    filter_grads_(copies, ratio=[0.1, 0.7, 0.0, 0.4], backend=backend)
    for actual, exact in zip([copies[0], *copies[2:]], expected, strict=True):
        assert distance(actual, exact) < 1e-6


@pytest.mark.parametrize("order", [None, "0", "random:7", range(500)], ids=str)
def test_empty_tensors_are_skipped(backend, order):
    grads = [torch.randn(0), torch.randn(500), torch.randn(0)]
    exact = truth(grads[1], ratio=0.2, order=order)
    filter_grads_(grads, ratio=[0.1, 0.2, 0.3], order=order, backend=backend)
    assert distance(grads[1], exact) < 1e-6
    filter_grads_(grads[:1], order=order, backend=backend)


def test_none_entries_and_empty_lists(backend):
    filter_grads_([], backend=backend)
    filter_grads_([None, None], backend=backend)
    grad = randn(1000)
    filter_grads_(iter([None, grad, None, torch.empty(0), torch.empty(3, 0, 2)]), backend=backend)
    assert grad.mean().abs() < 1e-6


@pytest.mark.parametrize("window", [1, 3, 25, 101, 999, 2001])
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("d", only([1, 20, 999], [1, 20, 999, 70_000]))
def test_windows(native, window, boundary, d):
    backend, grad = "cpp", randn(d)
    options = {"method": "lap", "window": window, "boundary": boundary}
    actual = filtered(grad, backend=backend, **options)
    exact = truth(grad, **options)
    assert (actual.double() - exact).norm() < 1e-6 * grad.double().norm()


@pytest.mark.parametrize("sigma", [0.1, 0.75, 7.5, 40.0, 150.0])
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("d", only([1, 20, 999], [1, 20, 999, 70_000]))
def test_sigmas(native, sigma, boundary, d):
    backend, grad = "cpp", randn(d)
    options = {"method": "gaussian", "sigma": sigma, "boundary": boundary}
    actual = filtered(grad, backend=backend, **options)
    exact = truth(grad, **options)
    assert (actual.double() - exact).norm() < 1e-6 * grad.double().norm()


@pytest.mark.parametrize("method", only(["lap"], ["lap", "gaussian"]))
def test_long_layers_with_a_large_mean_stay_accurate(native, method):
    """Where a float32 prefix sum would lose two digits."""
    grad = randn(2_359_296) * 1e-3 + 1
    actual = filtered(grad, method=method, backend="cpp")
    exact = truth(grad, method=method)
    assert (actual.double() - exact).norm() < 1e-6 * grad.double().norm()


@pytest.mark.parametrize("name", ["0231", "3210", "2130"])
def test_axis_orders(backend, name):
    weight = randn(16, 12, 3, 3)
    axes = [int(digit) for digit in name]
    moved = weight.permute(axes).contiguous()
    filter_grads_([moved], backend=backend)
    inverse = [axes.index(i) for i in range(4)]
    actual = filtered(weight, order=name, backend=backend)
    assert torch.equal(actual, moved.permute(inverse))


def test_sample_orders(backend):
    weight = randn(16, 12, 3, 3)
    permutation = torch.randperm(weight.numel(), generator=torch.Generator().manual_seed(5))
    moved = weight.flatten()[permutation].clone()
    filter_grads_([moved], backend=backend)
    expected = torch.empty_like(moved)
    expected[permutation] = moved
    actual = filtered(weight, order=permutation.tolist(), backend=backend)
    torch.testing.assert_close(actual.flatten(), expected)
    seeded = filtered(weight, order="random:3", backend=backend)
    assert torch.equal(seeded, filtered(weight, order="random:3", backend=backend))
    assert not torch.equal(seeded, filtered(weight, order="random:4", backend=backend))


@pytest.mark.parametrize("method", ["fft_high", "random", "l2", "fft2d"])
def test_controls_run_on_the_reference_backend(method):
    weight = randn(16, 8, 3, 3)
    actual = filtered(weight, method=method)
    assert distance(actual, truth(weight, method=method)) < 1e-6
    assert not torch.equal(actual, weight)


@pytest.mark.slow
@pytest.mark.parametrize("d", only([2**24], [2**24, 2**22 - 3]))
def test_millions(native, d):
    """At the edge of the removed band, the lower of two waves goes and the higher stays."""
    cutoff = int(0.05 * (d // 2 + 1))
    sample = torch.arange(d)
    lower, higher = (
        torch.cos((2 * torch.pi / d) * (k * sample % d).double()) for k in (cutoff - 1, cutoff)
    )
    actual = filtered((lower + higher).float(), ratio=0.05, backend="cpp")
    assert distance(actual, higher) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_are_read_and_rounded_like_torch(native, dtype):
    """All bit patterns: computed in float32 and rounded once, to the bit."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = bits.view(dtype)
    finite = values[values.float().abs() < torch.finfo(dtype).max / 8]
    wide = filtered(finite.float(), method="lap", window=3, backend="cpp")
    half = filtered(finite, method="lap", window=3, backend="cpp")
    assert torch.equal(half, wide.to(dtype))


@pytest.mark.parametrize("method", METHODS)
def test_nonfinite_values_propagate_by_default(backend, method):
    grad = randn(3000)
    grad[1500] = float("nan")
    filter_grads_([grad], method=method, backend=backend)
    spoiled = torch.isnan(grad)
    reach = {"fft": 3000, "lap": 25, "gaussian": 61}[method]
    assert int(spoiled.sum()) == reach


def test_gradients_that_are_negated_when_they_are_read(backend):
    """Imaginary parts of conjugates, as complex layers leave them; of others they tell nothing."""
    numbers = torch.randn(20, 40, dtype=torch.complex64)
    grads = [numbers.conj().imag, numbers.clone().imag, torch.randn(3, 300)]
    assert [grad.is_neg() for grad in grads] == [True, False, False]
    expected = [truth(grad) for grad in grads]
    versions = [grad._version for grad in grads]
    filter_grads_(grads, backend=backend)
    for grad, exact, version in zip(grads, expected, versions, strict=True):
        assert distance(grad, exact) < 1e-6
        assert grad._version > version
    assert grads[0].is_neg()
