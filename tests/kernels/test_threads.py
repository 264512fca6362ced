"""Calls from many threads at once: each filters its gradients or raises, whatever others do."""

import threading

import pytest
import torch
from helpers import needs_long_double
from test_random_calls import CALLS, check_random_call

from specgrad_kernels import filter_grads_, release_memory, set_cache_limits
from specgrad_kernels.kinds import METHODS

OPTIONS = {"spectrum": {"gains": [(0, 0), (0.3, 0.5)]}, "lap": {"window": 5}}


@pytest.fixture
def one_program():
    """Every call evicts the program of every other."""
    set_cache_limits(programs=1)
    yield
    set_cache_limits()


def shape_of(method, thread, call):
    """Eight threads use twelve layouts each, some of them shared."""
    size = 60 + (thread // 2) * 7 + call % 12
    return (2, size, 3, 3) if method == "fft2d" else (size, 9)


def expected(method, shape):
    grad = torch.linspace(-1, 2, torch.Size(shape).numel()).square().view(shape)
    exact = grad.clone()
    filter_grads_([exact], method=method, backend="torch", **OPTIONS.get(method, {}))
    return grad, exact


def run_threads(work, count=8):
    failures = []

    def guarded(thread):
        try:
            work(thread)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("method", METHODS)
def test_no_call_returns_unfiltered_when_programs_are_evicted(method, one_program):
    pairs = {shape_of(method, t, c): None for t in range(8) for c in range(12)}
    pairs = {shape: expected(method, shape) for shape in pairs}
    unfiltered = []

    def work(thread):
        for call in range(60):
            fresh, exact = pairs[shape_of(method, thread, call)]
            grad = fresh.clone()
            filter_grads_([grad], method=method, **OPTIONS.get(method, {}))
            if not torch.allclose(grad, exact, rtol=0, atol=1e-5):
                unfiltered.append((thread, call))

    run_threads(work)
    assert not unfiltered


@needs_long_double
def test_random_calls_when_programs_are_evicted(native, one_program):
    run_threads(lambda thread: [check_random_call(seed) for seed in range(thread, CALLS, 4)], 4)


def test_no_call_returns_unfiltered_while_memory_is_released(native):
    fresh, exact = expected("fft", (60, 9))
    stop = threading.Event()
    unfiltered = []

    def work(thread):
        if thread == 0:
            while not stop.is_set():
                release_memory()
        for _ in range(300 if thread else 0):
            grad = fresh.clone()
            filter_grads_([grad[:, ::2], grad[:, 1::2]], backend="cpp")  # slices of one tensor
            twin = fresh.clone()
            filter_grads_([twin], backend="cpp")
            unfiltered.extend([thread] * (not torch.allclose(twin, exact, atol=1e-5)))
        if thread == 1:
            stop.set()

    run_threads(work, 4)
    assert not unfiltered


def test_the_number_of_programs_that_are_kept_is_a_setting(native, one_program):
    release_memory()
    for size in (4098, 4099):
        filter_grads_([torch.zeros(size)], backend="cpp")
    alone = release_memory()[0]
    filter_grads_([torch.zeros(4099)], backend="cpp")
    assert release_memory()[0] == alone
    set_cache_limits(megabytes=0.001)  # the one in use stays
    filter_grads_([torch.zeros(4099)], backend="cpp")
    assert release_memory()[0] == alone


@pytest.mark.parametrize("limits", [{"programs": -1}, {"megabytes": -0.5}])
def test_limits_are_not_negative(limits):
    with pytest.raises(ValueError, match="must be 0 or more; got -"):
        set_cache_limits(**limits)
