"""The whole operation on a GPU: accuracy, layouts, streams, graphs, compilation, launches."""

import pytest
import torch

from specgrad_kernels import FilterPlan, FilterSpec, available_backends, filter_grads_
from specgrad_kernels.backends import torch_ref
from specgrad_kernels.spec import BOUNDARIES

METHODS = ["fft", "lap", "gaussian"]
TOLERANCE = {
    torch.float32: 1e-6,
    torch.float64: 1e-13,
    torch.bfloat16: torch.finfo(torch.bfloat16).eps,
    torch.float16: torch.finfo(torch.float16).eps,
}
LENGTHS = [1, 2, 3, 37, 40, 97, 432, 433, 2047, 2048, 2049, 2304, 36864, 36871, 147456, 589824]
RESNET20 = [432] + [2304] * 6 + [4608] + [9216] * 5 + [18432] + [36864] * 5


def _grads(shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    sizes = [(shape,) if isinstance(shape, int) else shape for shape in shapes]
    made = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    return [grad.to(dtype).cuda() for grad in made]


def _reference(grads, spec):
    exact = [grad.double().contiguous().clone() for grad in grads]
    torch_ref.run(exact, spec)
    return exact


def _check(grads, spec, exact, before):
    for grad, truth, norm in zip(grads, exact, before, strict=True):
        assert (grad.double() - truth).norm() <= TOLERANCE[grad.dtype] * norm


def _filter_and_check(grads, **options):
    spec = FilterSpec(**options)
    before = [grad.double().norm() for grad in grads]
    exact = _reference(grads, spec)
    filter_grads_(grads, backend="triton", **options)
    _check(grads, spec, exact, before)


def test_triton_is_preferred():
    assert available_backends()[0] == "triton"


def test_kernels_pass_their_self_check(tmp_path, monkeypatch):
    from specgrad_kernels.backends.triton import launch, self_check

    monkeypatch.delenv("SPECGRAD_SELF_CHECK", raising=False)
    monkeypatch.setattr(self_check, "folder", lambda: tmp_path)
    launch.calls.clear()
    _filter_and_check(_grads([432, 2304]))
    passed = {note["kernel"] for note in self_check.passed()}
    assert passed == {"spread", "filter_grid", "interpolate"}


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_every_length(method, dtype):
    _filter_and_check(_grads(LENGTHS, dtype), method=method)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("method", ["lap", "gaussian"])
def test_boundaries(method, boundary):
    _filter_and_check(_grads([5, 100, 2049, 36864]), method=method, boundary=boundary)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.3, 0.6])
def test_ratios(ratio):
    _filter_and_check(_grads([432, 2304, 36864]), ratio=ratio)


@pytest.mark.parametrize("method", METHODS)
def test_layouts(method):
    grads = _grads([(64, 32, 3, 3), (64, 32, 3, 3), (2, 3, 4, 3, 4, 8)])
    grads[0] = grads[0].to(memory_format=torch.channels_last)
    grads[1] = grads[1].permute(0, 2, 3, 1)
    grads[2] = grads[2].permute(5, 4, 3, 2, 1, 0)
    _filter_and_check(grads, method=method)


@pytest.mark.parametrize("method", METHODS)
def test_stacks(method):
    _filter_and_check(_grads([(4, 64, 36), (4, 432)]), method=method, batch_dims=1)


def test_many_runs_give_the_same_bits():
    """A race between programs would show here, sooner or later."""
    for method in METHODS:
        original = _grads(RESNET20)
        first = [grad.clone() for grad in original]
        filter_grads_(first, method=method)
        for _ in range(50):
            again = [grad.clone() for grad in original]
            filter_grads_(again, method=method)
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_streams_do_not_share_scratch_memory():
    streams = [torch.cuda.Stream() for _ in range(4)]
    lists = [_grads(RESNET20) for _ in streams]
    exact = _reference(lists[0], FilterSpec())
    norms = [grad.double().norm() for grad in lists[0]]
    torch.cuda.synchronize()
    for stream, grads in zip(streams, lists, strict=True):
        with torch.cuda.stream(stream):
            filter_grads_(grads)
    torch.cuda.synchronize()
    for grads in lists:
        _check(grads, FilterSpec(), exact, norms)


def test_no_host_synchronisation_and_no_allocation():
    grads = _grads(RESNET20)
    filter_grads_(grads)
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        filter_grads_(grads)
        moved = [torch.empty_like(grad) for grad in grads]
        allocated += len(moved)
        filter_grads_(moved)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated


@pytest.mark.parametrize("method", METHODS)
def test_graph_capture(method):
    grads = _grads(RESNET20)
    filter_grads_(grads, method=method)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        filter_grads_(grads, method=method)
    # other gradients in between must not move the graph's addresses
    filter_grads_(_grads(RESNET20), method=method)
    fresh = _grads(RESNET20)
    for grad, new in zip(grads, fresh, strict=True):
        grad.copy_(new)
    spec = FilterSpec(method=method)
    exact, norms = _reference(grads, spec), [grad.double().norm() for grad in grads]
    graph.replay()
    _check(grads, spec, exact, norms)


def test_graphs_that_are_recorded_again_keep_no_memory():
    grads = _grads(RESNET20)
    filter_grads_(grads)
    held = []
    for _ in range(4):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            filter_grads_(grads)
        del graph
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    assert held[1:] == held[:-1]


def test_nan_is_found_with_one_wait():
    grads = _grads([2304, 36864])
    grads[1][7] = float("nan")
    before = [grad.clone() for grad in grads]
    with pytest.raises(FloatingPointError, match=r"grads\[1\]"):
        filter_grads_(grads, nonfinite="raise")
    assert torch.equal(grads[0], before[0])


def test_a_default_device_changes_nothing():
    torch.set_default_device("cuda")
    try:
        _filter_and_check(_grads([432, 36864]))
    finally:
        torch.set_default_device(None)


def test_reduce_overhead():
    """The graphs that torch.compile records leave the filter out, and run it."""

    @torch.compile(mode="reduce-overhead")
    def scaled_and_filtered(x):
        y = x * 2
        filter_grads_([y])
        return y + 1

    for seed in range(4):
        x = torch.randn(36864, generator=torch.Generator().manual_seed(seed)).cuda()
        exact = _reference([2 * x], FilterSpec())[0] + 1
        assert (scaled_and_filtered(x).double() - exact).norm() <= 1e-5 * exact.norm()


def test_the_first_call_cannot_be_captured():
    grads = _grads([2304 * 3])
    with (
        pytest.raises(RuntimeError, match="before the CUDA graph"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        filter_grads_(grads, ratio=0.0625)


@pytest.mark.parametrize("method", METHODS)
def test_compiled(method):
    compiled = torch.compile(lambda grads: filter_grads_(grads, method=method), fullgraph=True)
    grads = _grads([2304, 36864])
    spec = FilterSpec(method=method)
    exact, norms = _reference(grads, spec), [grad.double().norm() for grad in grads]
    compiled(grads)
    _check(grads, spec, exact, norms)


@pytest.mark.parametrize(("method", "most"), [("fft", 3), ("lap", 2), ("gaussian", 2)])
def test_launches(method, most):
    grads = _grads(RESNET20)
    filter_grads_(grads, method=method)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        filter_grads_(grads, method=method)
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type.name == "CUDA"]
    assert len(kernels) == most


def test_second_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU on this machine")
    grads = [grad.to("cuda:1") for grad in _grads(RESNET20)]
    exact, norms = _reference(grads, FilterSpec()), [grad.double().norm() for grad in grads]
    filter_grads_(grads)
    _check(grads, FilterSpec(), exact, norms)


def test_plan_in_a_training_step():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.Conv2d(16, 32, 3), torch.nn.Flatten()
    ).cuda()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = FilterPlan.for_model(model)
    plan.attach(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 8, 8, device="cuda")).square().mean().backward()
        optimizer.step()
        assert all(abs(p.grad.mean()) < 1e-6 for p in plan.parameters)
    assert "on triton" in plan.describe()
