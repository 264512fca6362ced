"""The first guess of a PyTorch user works, or one sentence says what to write."""

import copy
import json
import warnings

import numpy as np
import pytest
import torch
from helpers import backward, filtered, small_model
from torch.utils._python_dispatch import TorchDispatchMode

from specgrad_kernels import FilterPlan, FilterSpec, filter_grads_, select_layers

GUESSES = {
    "ratio by name": lambda model: FilterPlan.for_model(model, ratio=0.1),
    "a method": lambda model: FilterPlan.for_model(model, "centralize"),
    "a method and its ratio": lambda model: FilterPlan.for_model(model, "fft", ratio=0.1),
    "a list of names": lambda model: FilterPlan.for_model(model, select=["0.weight"]),
    "a spec": lambda model: FilterPlan.for_model(model, FilterSpec("lap", window=5)),
    "numpy ratios": lambda model: FilterPlan.for_model(model, ratio=np.array([0.1, 0.2])),
}


@pytest.mark.parametrize("guess", GUESSES)
def test_a_plan_is_made(guess):
    model = small_model()
    plan = GUESSES[guess](model)
    backward(model)
    plan.filter_grads_()
    assert plan.names[0] == "0.weight"


@pytest.mark.parametrize(
    ("guess", "error", "sentence"),
    [
        (lambda m: FilterPlan(m), TypeError, r"call FilterPlan\.for_model\(model\)"),
        (lambda m: FilterPlan.for_model(m, "all_conv"), ValueError, "write select='all_conv'"),
        (
            lambda m: FilterPlan.for_model(m, select="all_convs"),
            ValueError,
            "takes none .* or one of auto, paper_default, spatial_only, all_conv",
        ),
        (
            lambda m: FilterPlan.for_model(m, select=["layer1"]),
            ValueError,
            "select names 'layer1', which is no parameter",
        ),
        (
            lambda m: FilterPlan.for_model(m, FilterSpec(), ratio=0.1),
            TypeError,
            "give a FilterSpec or ratio by name, not both",
        ),
        (
            lambda m: filter_grads_([torch.ones(9)], FilterSpec("lap")),
            TypeError,
            r"write filter_grads_\(grads, 'lap', \.\.\.\), or filter_grads\(grads, spec\)",
        ),
    ],
)
def test_a_sentence_says_what_to_write(guess, error, sentence):
    with pytest.raises(error, match=sentence):
        guess(small_model())


@pytest.mark.parametrize(
    ("method", "unused"),
    [
        ("fft", {"window": 5}),
        ("fft", {"sigma": 2.0}),
        ("fft", {"boundary": "reflect"}),
        ("lap", {"sigma": 2.0}),
        ("gaussian", {"window": 5}),
        ("centralize", {"boundary": "circular"}),
        ("fft", {"group_dims": 2}),
        ("fft", {"gains": [(0, 0), (1, 1)]}),
        ("lap", {"seed": 3}),
        ("spectrum", {"window": 5, "gains": [(0, 0), (1, 1)]}),
    ],
    ids=str,
)
def test_arguments_that_a_method_does_not_use_are_refused(method, unused):
    name = next(iter(unused))
    with pytest.raises(ValueError, match=f"method '{method}' does not use {name}; got {name}="):
        FilterSpec(method, **unused)
    grad = torch.randn(100)
    before = grad.clone()
    with pytest.raises(ValueError, match=f"does not use {name}"):
        filter_grads_([grad], method, **unused)
    assert torch.equal(grad, before)


def test_the_step_filters_then_clips():
    model = small_model()
    plan = FilterPlan.for_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan.attach(optimizer, max_norm=0.01)
    backward(model)
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    for name in plan.names:
        expected[name] = filtered(expected[name])
    norm = torch.stack([grad.norm() for grad in expected.values()]).norm()
    assert norm > 0.01
    optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, expected[name] * (0.01 / norm), rtol=1e-4, atol=0
        )


class _HostReads(TorchDispatchMode):
    """Count values that the host asks a device for."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_clipping_under_a_scale_reads_nothing_on_the_host():
    """As GradScaler hands its scale to an optimizer that takes it off inside its step."""
    layer = torch.nn.Linear(8, 8, bias=False)
    layer.weight.grad = torch.randn(8, 8)
    optimizer = torch.optim.SGD([layer.weight], lr=1.0, fused=True)
    optimizer.grad_scale = torch.tensor(64.0)
    FilterPlan([("weight", layer.weight)]).attach(optimizer, max_norm=0.01)
    before = layer.weight.detach().clone()
    with _HostReads() as reads:
        optimizer.step()
    assert reads.count == 0
    assert (layer.weight - before).norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("max_norm", [0, -1.0])
def test_a_norm_to_clip_to_is_positive(max_norm):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="max_norm must be positive, or None"):
        FilterPlan.for_model(model).attach(optimizer, max_norm=max_norm)


def test_a_checkpoint_says_how_it_was_trained():
    model = small_model()
    state = FilterPlan.for_model(model, "lap", window=7).state_dict()
    state = json.loads(json.dumps(state))
    plan = FilterPlan.for_model(model)
    plan.load_state_dict(state)
    assert plan.spec == FilterSpec("lap", window=7)
    other = FilterPlan.for_model(model, select=["0.weight"])
    with pytest.raises(ValueError, match="the checkpoint's plan has other names"):
        other.load_state_dict(state)


def test_a_plan_without_any_gradient_says_so_once():
    model = small_model()
    plan = FilterPlan.for_model(model)
    model.load_state_dict(small_model(1).state_dict(), assign=True)
    backward(model)
    with pytest.warns(RuntimeWarning, match=r"none of the plan's 2 layers .* plan\.bind\(model\)"):
        plan.filter_grads_()
    plan.filter_grads_()
    plan.bind(model).filter_grads_()
    assert model[0].weight.grad.mean().abs() < 1e-7


def test_a_parameter_that_was_replaced_is_said_once():
    model = small_model()
    plan = FilterPlan.for_model(model)
    model[3].weight.requires_grad_(False)
    backward(model)
    plan.filter_grads_()  # frozen, so rightly without a gradient
    model[0].weight = torch.nn.Parameter(model[0].weight.detach().clone())
    model[3].weight.requires_grad_()
    model.zero_grad()
    plan.parameters[0].grad = None
    backward(model)
    with pytest.warns(RuntimeWarning, match=r"parameter 0\.weight was replaced.*plan\.bind\(model"):
        plan.filter_grads_()
    assert model[3].weight.grad.mean().abs() < 1e-7  # the others are filtered
    plan.filter_grads_()
    plan.bind(model).filter_grads_()
    assert model[0].weight.grad.mean().abs() < 1e-7


def filter_as_often_as_layers(plan):
    for _ in plan.names:
        plan.filter_grads_()


def test_a_replaced_parameter_that_keeps_an_old_gradient_is_said_once():
    model = small_model()
    plan = FilterPlan.for_model(model)
    backward(model)
    model[3].weight = torch.nn.Parameter(model[3].weight.detach().clone())
    backward(model)
    with pytest.warns(RuntimeWarning, match=r"parameter 3\.weight was replaced.*plan\.bind\(model"):
        filter_as_often_as_layers(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filter_as_often_as_layers(plan)
    plan.bind(model).filter_grads_()
    assert model[3].weight.grad.mean().abs() < 1e-7


def test_a_parameter_that_was_moved_inside_its_model_is_filtered_without_a_word():
    model = small_model()
    plan = FilterPlan.for_model(model)
    torch.nn.utils.parametrize.register_parametrization(model[0], "weight", torch.nn.Identity())
    backward(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filter_as_often_as_layers(plan)
    assert model[0].parametrizations.weight.original.grad.mean().abs() < 1e-7


def test_a_copy_of_an_attached_plan_says_that_its_optimizer_has_no_hooks():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = FilterPlan.for_model(model)
    copy.deepcopy((model, plan))
    plan.attach(optimizer)
    with pytest.warns(RuntimeWarning, match="a copied optimizer has no hooks"):
        model, optimizer, twin = copy.deepcopy((model, optimizer, plan))
    twin.attach(optimizer)


def test_a_plan_that_takes_almost_nothing_says_so():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 2000)
    )
    with pytest.warns(RuntimeWarning, match="the plan filters 18 of the model's 146,020 weights"):
        FilterPlan.for_model(model)
    FilterPlan.for_model(model, select=["0.weight"])


@pytest.mark.parametrize("factor", [1e20, 1e-25, 1e30])
def test_l2_neither_overflows_nor_underflows(factor):
    grad = torch.randn(500, generator=torch.Generator().manual_seed(0))
    expected = filtered(grad.double() * factor, method="l2")
    actual = filtered(grad * factor, method="l2").double()
    assert (actual - expected).norm() < 1e-6 * expected.norm()


def test_fft2d_is_a_projector():
    grad = torch.randn(4, 3, 6, 5, dtype=torch.float64)
    once = filtered(grad, method="fft2d", ratio=0.5)
    torch.testing.assert_close(filtered(once, method="fft2d", ratio=0.5), once)


def test_the_index_of_an_error_counts_what_is_missing(backend):
    with pytest.raises(TypeError, match=r"grads\[2\] has dtype torch.int64"):
        filter_grads_([None, torch.ones(50), torch.ones(50, dtype=torch.int64)], backend=backend)


def test_nested_tensors_are_refused_in_a_sentence(backend):
    nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])
    with pytest.raises(TypeError, match=r"grads\[0\] is a nested tensor; only dense"):
        filter_grads_([nested], backend=backend)


def test_a_ratio_next_to_one_leaves_the_last_bin():
    spec = FilterSpec(ratio="0.99999999999999999999")
    assert spec.cutoff(100) == 50
    grad = torch.randn(100)
    filter_grads_([grad], ratio="0.99999999999999999999")
    assert grad.abs().sum() > 0


def test_numpy_numbers_and_lists():
    grads = [torch.randn(200), torch.randn(300)]
    for ratio in (np.float32(0.25), np.float64(0.25), [np.float64(0.25)] * 2, np.array([0.25] * 2)):
        copies = [grad.clone() for grad in grads]
        filter_grads_(copies, ratio=ratio)
        torch.testing.assert_close(copies, [filtered(grad, ratio=0.25) for grad in grads])
    gains = np.array([[0, 0], [0.5, 1]])
    expected = filtered(grads[0], method="spectrum", gains=[(0, 0), (0.5, 1)])
    assert torch.equal(filtered(grads[0], method="spectrum", gains=gains), expected)
    listed = [[np.float64(0), 0], [0.5, np.int64(1)]]
    assert torch.equal(filtered(grads[0], method="spectrum", gains=listed), expected)


def described(shape, **options):
    parameter = torch.nn.Parameter(torch.zeros(shape))
    plan = FilterPlan([("layer", parameter)], FilterSpec(**options))
    return plan.layers[0], plan.describe()


def test_descriptions_are_of_what_is_done():
    layer, text = described((64, 3, 3, 3), method="centralize", order="1023")
    assert layer.d == 576
    assert "\n1 layer, " in text
    narrow, _ = described((5000,), method="lap", window=3)
    wide, _ = described((5000,), method="lap", window=1001)
    assert (narrow.cutoff, wide.cutoff) == (1005, 3)
    assert described((5000,), method="gaussian", sigma=100.0)[0].cutoff == 9
    pointwise, _ = described((64, 32, 1, 1), method="fft2d")
    assert (pointwise.cutoff, pointwise.strategy) == (0, "identity")


def test_a_list_of_names_selects_exactly_these():
    assert list(select_layers(small_model(), ["3.weight"]).taken) == ["3.weight"]
