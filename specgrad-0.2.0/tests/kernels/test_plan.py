"""FilterPlan in training loops: hooks, scaling, accumulation, copies, threads, processes."""

import copy
import ctypes
import pickle
import sys
import threading

import pytest
import torch
from helpers import backward, distance, small_model, truth
from torch import nn

from specgrad_kernels import FilterPlan, FilterSpec, available_backends, filter_grads_
from specgrad_kernels.backends import BACKENDS


def test_plan_filters_selected_layers_only():
    model = small_model()
    backward(model)
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    plan = FilterPlan.for_model(model)
    plan.filter_grads_()
    assert plan.names == ["0.weight", "3.weight"]
    for name, parameter in model.named_parameters():
        if name in plan.names:
            assert distance(parameter.grad, truth(before[name])) < 1e-6
        else:
            assert torch.equal(parameter.grad, before[name])


def test_plan_survives_reallocated_and_missing_gradients():
    model = small_model()
    plan = FilterPlan.for_model(model)
    plan.filter_grads_()  # no gradients yet
    for seed in range(3):
        model.zero_grad(set_to_none=True)
        backward(model, seed)
        exact = truth(model[3].weight.grad)
        plan.filter_grads_()
        assert distance(model[3].weight.grad, exact) < 1e-6


def test_plan_takes_gradients_of_its_own_layout():
    model = small_model()
    plan = FilterPlan.for_model(model, FilterSpec(batch_dims=1))
    stacks = [torch.randn(5, *p.shape) for p in plan.parameters]
    exact = truth(stacks[1][2])
    plan.filter_grads_(stacks)
    assert distance(stacks[1][2], exact) < 1e-6
    with pytest.raises(ValueError, match="the plan has 2 layers; got 1 gradients"):
        plan.filter_grads_(stacks[:1])


def test_deepcopy_follows_the_copied_model():
    model = small_model()
    pair = copy.deepcopy({"plan": FilterPlan.for_model(model), "model": model})
    assert pair["plan"].parameters[1] is pair["model"][3].weight
    backward(pair["model"])
    exact = truth(pair["model"][3].weight.grad)
    pair["plan"].filter_grads_()
    assert distance(pair["model"][3].weight.grad, exact) < 1e-6
    assert model[3].weight.grad is None


def test_a_shallow_copy_filters_the_same_model():
    model = small_model()
    plan = FilterPlan.for_model(model)
    twin = copy.copy(plan)
    assert twin is not plan
    backward(model)
    exact = truth(model[3].weight.grad)
    twin.filter_grads_()
    assert distance(model[3].weight.grad, exact) < 1e-6
    twin.bind(small_model(1))
    assert plan.parameters[1] is model[3].weight


def test_layers_are_described_as_they_are_now(native):
    model = small_model()
    plan = FilterPlan.for_model(model)
    single = plan.layers[1]
    model.double()
    assert plan.layers[1].dtype == torch.float64
    assert plan.layers[1].error_bound < 1e-12 < single.error_bound
    assert plan.describe() == FilterPlan.for_model(model).describe()


def test_a_plan_made_without_memory_asks_for_the_model_that_has_it():
    with torch.device("meta"):
        model = small_model()
    plan = FilterPlan.for_model(model)
    assert "2 layers, 2,736 weights" in plan.describe()
    model.to_empty(device="cpu")
    model.load_state_dict(small_model().state_dict())
    backward(model)
    before = model[3].weight.grad.clone()
    with pytest.raises(RuntimeError, match=r"holds 0\.weight as the meta tensor .* plan\.bind"):
        plan.filter_grads_()
    with pytest.raises(RuntimeError, match=r"plan\.bind\(model\)"):
        plan.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(model[3].weight.grad, before)
    copy.copy(plan).bind(model).filter_grads_()
    assert distance(model[3].weight.grad, truth(before)) < 1e-6


def test_weights_are_counted_once_whatever_is_stacked():
    layers = [
        ("a", nn.Parameter(torch.zeros(16, 16, 3, 3))),
        ("b", nn.Parameter(torch.zeros(4, 9))),
    ]
    text = FilterPlan(layers, FilterSpec(batch_dims=1)).describe()
    assert "144" in text.splitlines()[1]
    assert "2 layers, 2,340 weights" in text


def test_pickle_keeps_spec_and_layers_and_asks_for_a_model():
    plan = FilterPlan.for_model(small_model(), FilterSpec(method="lap", ratio=0.1))
    data = pickle.dumps(plan)
    assert len(data) < 2000  # no weights inside
    restored = pickle.loads(data)
    assert restored.spec == plan.spec
    assert restored.names == plan.names
    with pytest.raises(RuntimeError, match=r"call plan.bind\(model\) first"):
        restored.filter_grads_()
    other = small_model(3)
    backward(other)
    restored.bind(other).filter_grads_()
    assert other[3].weight.grad.mean().abs() < 1e-6
    with pytest.raises(ValueError, match=r"the plan filters 0\.weight of shape"):
        restored.bind(nn.Linear(3, 3))


def test_describe_says_what_happens_to_each_layer(native):
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(3, 16, 3))
    plan = FilterPlan.for_model(model, select=r"weight")
    text = plan.describe()
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert "64x64x3x3" in rows["0.weight"]
    assert "36,864" in rows["0.weight"]
    assert "921" in rows["0.weight"]
    assert "identity" in rows["1.weight"]
    for layer in plan.layers:  # which one is chosen depends on the processor
        assert layer.strategy.split()[0] in ("identity", "dense", "band", "full")
        assert layer.strategy in rows[layer.name]
        assert f"{layer.workspace_bytes:,} B" in rows[layer.name]
    assert text.splitlines()[-1] == "3 layers, 37,312 weights, fft on cpp"
    bounds = [layer.error_bound for layer in plan.layers]
    assert bounds[1] == 0
    assert all(bound < 2e-6 for bound in bounds)


@pytest.mark.parametrize(
    ("strategy", "named"), [("dense", "dense"), ("band", "band /"), ("full", "full")]
)
def test_describe_names_the_strategy_that_was_asked_for(native, strategy, named):
    plan = FilterPlan.for_model(nn.Conv2d(16, 16, 3), FilterSpec(strategy=strategy))
    assert plan.layers[0].strategy.startswith(named)
    assert named in plan.describe()


def test_describe_on_the_reference_backend():
    plan = FilterPlan.for_model(small_model(), FilterSpec(method="l2"))
    assert "stacked l2" in plan.describe()
    assert "on torch" in plan.describe()
    assert "0 layers" in FilterPlan([]).describe()


def test_workspace_of_the_coarse_grid_is_less_than_half_the_layer(native):
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.Conv2d(32, 32, 3))
    plan = FilterPlan.for_model(model, FilterSpec(strategy="band"), select="weight")
    for layer in plan.layers:
        assert layer.workspace_bytes < 4 * layer.d / 2


def test_many_python_threads(threads):
    threads(1)
    grads = [[torch.randn(9216) for _ in range(4)] for _ in range(6)]
    exact = [[truth(grad) for grad in group] for group in grads]
    failures = []

    def work(group, expected):
        try:
            filter_grads_(group)
            assert all(distance(g, e) < 1e-6 for g, e in zip(group, expected, strict=True))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=pair) for pair in zip(grads, exact, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def runs_beside(call, tries):
    """Return True if another Python thread gets to run during some of these calls.

    Nothing but a call that gives the interpreter lock away lets it: the interpreter itself
    is told not to switch.
    """
    go, ran = threading.Lock(), threading.Event()
    go.acquire()
    other = threading.Thread(target=lambda: (go.acquire(), ran.set()))
    other.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    try:
        go.release()
        return any(call() or ran.is_set() for _ in range(tries))
    finally:
        sys.setswitchinterval(interval)
        other.join()


def test_the_interpreter_lock_is_released(native, threads):
    threads(1)
    grads = [torch.randn(2**18)]
    assert runs_beside(lambda: filter_grads_(grads, backend="cpp"), tries=10_000)
    # PyDLL keeps the lock during a call, unlike CDLL
    assert not runs_beside(lambda: ctypes.PyDLL(None).usleep(10_000) and None, tries=5)


@pytest.mark.parametrize("missing", [(), ("triton",), ("cpp",), ("triton", "cpp")], ids=str)
def test_available_backends_are_the_usable_ones_in_order_of_preference(monkeypatch, missing):
    for backend in BACKENDS:
        reason = "not here" if backend.NAME in missing else None
        monkeypatch.setattr(backend, "why_not", lambda reason=reason: reason)
    preferred = ["triton", "cpp", "torch"]
    assert available_backends() == [name for name in preferred if name not in missing]
