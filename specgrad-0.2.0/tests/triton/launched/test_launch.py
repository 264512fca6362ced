"""``launch.run`` through Triton's own compiler and launcher, executed as PTX."""

import pytest
import torch
from triton_tools.compare import random_grads, reference

from specgrad_kernels.backends.triton import launch
from specgrad_kernels.spec import FilterSpec

LENGTHS = [432]


def _errors(grads, exact):
    return [
        float((grad.double() - truth).norm() / truth.norm())
        for grad, truth in zip(grads, exact, strict=True)
    ]


@pytest.mark.parametrize(
    "spec", [FilterSpec(), FilterSpec("lap"), FilterSpec("gaussian")], ids=lambda spec: spec.method
)
def test_a_call_filters(device, spec):
    grads = random_grads(LENGTHS)
    exact = reference(grads, spec)
    launch.run(grads, spec)
    names = device.work()
    assert names[0] == "store_addresses"
    assert max(_errors(grads, exact)) < 1e-6


def test_a_bound_launch_keeps_its_code_loaded(device):
    """Triton unloads code with the last reference to its kernel."""
    grads = random_grads([41])
    launch.run(grads, FilterSpec())
    buffers = launch.calls.find(grads, FilterSpec()).buffers(grads)
    assert [bound.kernel.name for bound in buffers._launches] == ["subtract_means"]
    assert all(bound.kernel.function in bound.args for bound in buffers._launches)


def test_nothing_has_happened_before_the_device_works(device):
    grads = random_grads(LENGTHS)
    before = [grad.clone() for grad in grads]
    launch.run(grads, FilterSpec())
    assert all(torch.equal(a, b) for a, b in zip(grads, before, strict=True))


def test_addresses_are_written_only_when_they_move(device):
    grads, moved = random_grads(LENGTHS), random_grads(LENGTHS, seed=1)
    launch.run(grads, FilterSpec())
    assert device.work().count("store_addresses") == 1
    launch.run(grads, FilterSpec())
    assert "store_addresses" not in device.work()
    exact = reference(moved, FilterSpec())
    launch.run(moved, FilterSpec())
    assert device.work().count("store_addresses") == 1
    assert max(_errors(moved, exact)) < 1e-6


def test_moved_gradients_wait_in_line(device):
    """The second call is made before the first one's kernels have read their addresses."""
    both = [random_grads(LENGTHS, seed=seed) for seed in (1, 2)]
    exact = [reference(grads, FilterSpec()) for grads in both]
    for grads in both:
        launch.run(grads, FilterSpec())
    device.work()
    for grads, truths in zip(both, exact, strict=True):
        assert max(_errors(grads, truths)) < 1e-6


@pytest.mark.parametrize("seed", [0, 1])
def test_streams_run_in_any_order(device, seed):
    both = [random_grads(LENGTHS, seed=seed) for seed in (1, 2)]
    exact = [reference(grads, FilterSpec()) for grads in both]
    for stream, grads in zip((7, 8), both, strict=True):
        with device.on_stream(stream):
            launch.run(grads, FilterSpec())
    device.work(seed)
    for grads, truths in zip(both, exact, strict=True):
        assert max(_errors(grads, truths)) < 1e-6


def test_a_graph_keeps_its_addresses_and_its_memory(device):
    grads = random_grads(LENGTHS)
    launch.run(grads, FilterSpec())
    device.work()
    with device.record() as graph:
        launch.run(grads, FilterSpec())
    assert graph.launches[0].name == "store_addresses"
    others = random_grads(LENGTHS, seed=1)
    launch.run(others, FilterSpec())
    for grad, fresh in zip(grads, random_grads(LENGTHS, seed=2), strict=True):
        grad.copy_(fresh)
    exact = reference(grads, FilterSpec())
    device.replay(graph)
    device.work()
    assert max(_errors(grads, exact)) < 1e-6


def test_recording_often_keeps_no_more(device):
    grads = random_grads([41])
    launch.run(grads, FilterSpec())
    program = launch.calls.find(grads, FilterSpec())
    for _ in range(3):
        with device.record():
            launch.run(grads, FilterSpec())
    assert len(program._buffers) == 1
    assert list(launch.calls.by_layout.values()) == [program]


def test_what_a_graph_refers_to_is_not_dropped(device, monkeypatch):
    monkeypatch.setattr(launch, "MAX_KEPT", 2)
    grads = random_grads([41])
    launch.run(grads, FilterSpec())
    with device.record() as graph:
        launch.run(grads, FilterSpec())
    others = [random_grads([length]) for length in (43, 47, 53)]
    for other in others:
        launch.run(other, FilterSpec())
        device.work()
    exact = reference(grads, FilterSpec())
    device.replay(graph)
    device.work()
    assert len(launch.calls.by_layout) == 2
    assert max(_errors(grads, exact)) < 1e-6


def test_the_first_call_cannot_be_recorded(device):
    with device.record(), pytest.raises(RuntimeError, match="before the CUDA graph"):
        launch.run(random_grads([59]), FilterSpec())


def test_a_check_that_waits_cannot_be_recorded(device):
    spec = FilterSpec(nonfinite="raise")
    grads = random_grads([41])
    launch.run(grads, spec)
    with device.record() as graph, pytest.raises(RuntimeError, match="nonfinite='propagate'"):
        launch.run(grads, spec)
    assert not graph.launches


def test_many_gradients_in_one_launch_of_addresses(device):
    grads = random_grads([30] * 116 + [41])  # the short ones are left alone
    exact = reference(grads, FilterSpec())
    launch.run(grads, FilterSpec())
    assert device.work() == ["store_addresses", "subtract_means"]
    assert max(_errors(grads, exact)) < 1e-6


def test_gradients_that_moved_onto_each_other_are_refused(device):
    memory = torch.randn(200)
    launch.run([memory[:41], memory[50:91]], FilterSpec())
    with pytest.raises(ValueError, match="share memory"):
        launch.run([memory[:41], memory[40:81]], FilterSpec())
    # neighbours in a matrix have extents that overlap, and no byte in common
    matrix = torch.randn(41, 2)
    launch.run([matrix[:, 0], matrix[:, 1]], FilterSpec())
    apart = torch.randn(41, 4)
    launch.run([apart[:, 1], apart[:, 3]], FilterSpec())


def test_a_default_device_changes_nothing(device):
    grads = random_grads(LENGTHS)
    exact = reference(grads, FilterSpec())
    torch.set_default_device("meta")
    try:
        launch.run(grads, FilterSpec())
    finally:
        torch.set_default_device(None)
    device.work()
    assert max(_errors(grads, exact)) < 1e-6
