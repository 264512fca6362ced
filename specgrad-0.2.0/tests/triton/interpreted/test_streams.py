"""Buffers of each stream and graph, with streams that are only numbers here."""

import threading

import pytest
import torch
from triton_tools.compare import forget_programs, random_grads, reference

from specgrad_kernels.backends.triton import launch
from specgrad_kernels.backends.triton.binding import AddressTable
from specgrad_kernels.spec import FilterSpec

LENGTHS = [144, 160]


@pytest.fixture
def on_stream(monkeypatch):
    """Pretend that calls happen on a stream."""
    forget_programs()

    def use(stream):
        monkeypatch.setattr(launch, "stream_of", lambda device: (stream, False))

    use(1)
    return use


def test_streams_share_tables_and_nothing_else(on_stream):
    grads = random_grads(LENGTHS)
    call = launch.calls.find(grads, FilterSpec())
    first = call.buffers(grads)
    assert call.buffers(grads) is first
    on_stream(2)
    second = launch.calls.find(grads, FilterSpec()).buffers(grads)
    for mine, theirs in zip(first.arguments, second.arguments, strict=True):
        assert mine["programs_ptr"] is theirs["programs_ptr"]
        assert mine["coefficients_ptr"] is theirs["coefficients_ptr"]
        assert mine["workspace_ptr"].data_ptr() != theirs["workspace_ptr"].data_ptr()


class Watched:
    """A lock that knows whether somebody waits for it."""

    def __init__(self):
        self._lock, self._wanted = threading.Lock(), threading.Event()

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            self._wanted.set()
            self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()

    def let_run(self, thread):
        """Start a thread and let it run until it ends or waits for this lock."""
        thread.start()
        while thread.is_alive() and not self._wanted.wait(0.01):
            pass


def test_threads_on_one_stream_do_not_use_each_others_addresses(on_stream, monkeypatch):
    """The second thread has every chance to run between the first one's writing and its launch."""
    both = [random_grads(LENGTHS, seed=seed) for seed in (1, 2)]
    launch.run(random_grads(LENGTHS), FilterSpec())
    exact = [reference(grads, FilterSpec()) for grads in both]
    second = threading.Thread(target=launch.run, args=(both[1], FilterSpec()))
    buffers = launch.calls.find(both[0], FilterSpec()).buffers(both[0])
    lock = buffers._lock = Watched()
    write = AddressTable.write

    def write_and_let_the_other_run(table, new):
        write(table, new)
        if threading.current_thread() is not second:
            lock.let_run(second)

    monkeypatch.setattr(AddressTable, "write", write_and_let_the_other_run)
    launch.run(both[0], FilterSpec())
    second.join()
    for grads, truths in zip(both, exact, strict=True):
        for grad, truth in zip(grads, truths, strict=True):
            assert (grad.double() - truth).norm() < 5e-7 * truth.norm()


def test_threads_prepare_a_call_once(on_stream):
    grads = random_grads(LENGTHS)
    key, built, states = "key", [], []
    kept = launch._Kept()
    lock = kept._lock = Watched()

    def build():
        built.append(threading.current_thread())
        if len(built) == 1:
            lock.let_run(second)
        return launch.PreparedCall(grads, FilterSpec())

    second = threading.Thread(target=lambda: states.append(kept.take(key, build)))
    states.append(kept.take(key, build))
    second.join()
    assert len(built) == 1
    assert states[0] is states[1]


def test_old_calls_are_dropped(on_stream, monkeypatch):
    monkeypatch.setattr(launch, "MAX_KEPT", 2)
    for length in (41, 43, 47, 53):
        launch.calls.find([torch.randn(length)], FilterSpec())
    assert len(launch.calls.by_layout) == 2


def test_two_layouts_of_one_spec_alternate(on_stream):
    for lengths in ([41, 43], [43, 41], [41, 43]):
        grads = random_grads(lengths)
        exact = reference(grads, FilterSpec())
        launch.run(grads, FilterSpec())
        for grad, truth in zip(grads, exact, strict=True):
            assert (grad.double() - truth).norm() < 5e-7 * truth.norm()
    assert len(launch.calls.by_layout) == 2


class _OtherSignature:
    def __init__(self, tensors):
        pass


class _AlwaysTrue:
    def __init__(self, *tensors, **sizes):
        pass

    def check(self, *tensors):
        return True


@pytest.mark.parametrize("changed", [None, _OtherSignature, _AlwaysTrue])
def test_without_pytorchs_guards_calls_are_found_by_layout(on_stream, monkeypatch, changed):
    monkeypatch.setattr("torch._C._dynamo.guards.TensorGuards", changed)
    grads = random_grads([41])
    call = launch.calls.find(grads, FilterSpec())
    assert not call.matches_layout(*grads)
    assert launch.calls.find(random_grads([41]), FilterSpec()) is call


@pytest.mark.parametrize("inference", [False, True])
def test_a_known_call_refuses_what_a_new_one_would(on_stream, inference):
    launch.run(random_grads([41, 43]), FilterSpec())
    with torch.inference_mode(inference), pytest.raises(TypeError):
        launch.run([torch.randn(41).to(torch.int32), torch.randn(43)], FilterSpec())
    with pytest.raises(ValueError, match="requires grad"):
        launch.run([torch.randn(41, requires_grad=True), torch.randn(43)], FilterSpec())
