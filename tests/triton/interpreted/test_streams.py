"""State per stream and per graph, with streams that are only numbers here."""

import threading

import pytest
import torch
from triton_tools.compare import random_grads, reference

from specgrad_kernels.backends.triton import addresses, launch
from specgrad_kernels.spec import FilterSpec

LENGTHS = [432, 2304]


@pytest.fixture
def on_stream(monkeypatch):
    """Pretend that calls happen on a stream, perhaps one that is recorded."""
    launch._tables.clear()
    launch._prepared.clear()

    def use(stream, capturing=False):
        monkeypatch.setattr(launch, "stream_of", lambda device: (stream, capturing))

    use(1)
    return use


def test_streams_share_tables_and_nothing_else(on_stream):
    grads = random_grads(LENGTHS)
    first = launch.prepare(grads, FilterSpec())
    assert launch.prepare(grads, FilterSpec()) is first
    on_stream(2)
    second = launch.prepare(grads, FilterSpec())
    assert second.tables is first.tables
    mine, theirs = first.scratch[0]["workspace"], second.scratch[0]["workspace"]
    assert mine.data_ptr() != theirs.data_ptr()


def test_the_first_call_cannot_be_recorded(on_stream):
    on_stream(1, capturing=True)
    with pytest.raises(RuntimeError, match="before the CUDA graph"):
        launch.run(random_grads(LENGTHS), FilterSpec())


def test_a_recorded_call_keeps_its_addresses(on_stream, monkeypatch):
    grads = random_grads(LENGTHS)
    launch.run(grads, FilterSpec())
    on_stream(1, capturing=True)
    with monkeypatch.context() as patch:
        patch.setattr(addresses, "upload", lambda *_: pytest.fail("host memory in a graph"))
        launch.run(grads, FilterSpec())
    recorded = launch._captured[-1]
    on_stream(1)
    launch.run(random_grads(LENGTHS, seed=1), FilterSpec())

    # what a replay does: the recorded launches again, on new values at the old addresses
    for grad, fresh in zip(grads, random_grads(LENGTHS, seed=2), strict=True):
        grad.copy_(fresh)
    exact = reference(grads, FilterSpec())
    for kernel, arguments in recorded._launches:
        kernel(**arguments)
    for grad, truth in zip(grads, exact, strict=True):
        assert (grad.double() - truth).norm() < 5e-7 * truth.norm()


def test_addresses_are_written_only_when_they_move(on_stream, monkeypatch):
    written = []
    upload = addresses.upload
    monkeypatch.setattr(
        addresses, "upload", lambda table, new: (written.append(new), upload(table, new))
    )
    grads = random_grads(LENGTHS)
    for _ in range(3):
        launch.run(grads, FilterSpec())
    assert len(written) == 1
    moved = [grad.clone() for grad in grads]
    launch.run(moved, FilterSpec())
    assert written[1] == [grad.data_ptr() for grad in moved]


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
    """The second thread has every chance to run between the first one's upload and its launch."""
    both = [random_grads(LENGTHS, seed=seed) for seed in (1, 2)]
    launch.run(random_grads(LENGTHS), FilterSpec())
    exact = [reference(grads, FilterSpec()) for grads in both]
    second = threading.Thread(target=launch.run, args=(both[1], FilterSpec()))
    lock = launch.prepare(both[0], FilterSpec())._lock = Watched()
    upload = addresses.upload

    def upload_and_let_the_other_run(table, new):
        upload(table, new)
        if threading.current_thread() is not second:
            lock.let_run(second)

    monkeypatch.setattr(addresses, "upload", upload_and_let_the_other_run)
    launch.run(both[0], FilterSpec())
    second.join()
    for grads, truths in zip(both, exact, strict=True):
        for grad, truth in zip(grads, truths, strict=True):
            assert (grad.double() - truth).norm() < 5e-7 * truth.norm()


def test_threads_build_a_state_once(on_stream):
    grads = random_grads(LENGTHS)
    key, built, states = "key", [], []
    kept = launch._Kept()
    lock = kept._lock = Watched()

    def build():
        built.append(threading.current_thread())
        if len(built) == 1:
            lock.let_run(second)
        return launch.prepare(grads, FilterSpec())

    second = threading.Thread(target=lambda: states.append(kept.take(key, build)))
    states.append(kept.take(key, build))
    second.join()
    assert len(built) == 1
    assert states[0] is states[1]


def test_old_states_are_dropped(on_stream, monkeypatch):
    monkeypatch.setattr(launch, "MAX_KEPT", 2)
    for length in (41, 43, 47, 53):
        launch.prepare([torch.randn(length)], FilterSpec())
    assert len(launch._prepared) == 2
    assert len(launch._tables) == 2
