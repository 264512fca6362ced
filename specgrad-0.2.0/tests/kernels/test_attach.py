"""A plan attached to an optimizer filters what its step uses, once, whoever calls the step."""

import copy
import gc
import io
import warnings
import weakref

import pytest
import torch
from helpers import backward, distance, small_model, truth
from torch import nn

from specgrad_kernels import FilterPlan, FilterSpec
from specgrad_kernels.hooks import filter_all_steps

# filtering twice with it is not filtering once, so a test sees whether it ran twice
GAUSSIAN = {"method": "gaussian", "sigma": 2.0}
NOT_IDEMPOTENT = FilterSpec(**GAUSSIAN)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def descend(model, spec=NOT_IDEMPOTENT, lr=0.1):
    """The weights after one step of plain descent with gradients filtered once."""
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=lr)
    backward(twin)
    FilterPlan.for_model(twin, spec).filter_grads_()
    optimizer.step()
    return weights(twin)


@pytest.mark.parametrize("optimizer_type", [torch.optim.SGD, torch.optim.AdamW])
def test_attached_plan_equals_calling_it(optimizer_type):
    by_hand, attached = small_model(), small_model()
    optimizers = [optimizer_type(m.parameters(), lr=0.05) for m in (by_hand, attached)]
    plan = FilterPlan.for_model(by_hand)
    handle = FilterPlan.for_model(attached).attach(optimizers[1])
    for seed in range(3):
        backward(by_hand, seed)
        plan.filter_grads_()
        optimizers[0].step()
        backward(attached, seed)
        optimizers[1].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    assert torch.equal(by_hand[3].weight, attached[3].weight)
    handle.remove()
    backward(attached)
    unfiltered = attached[3].weight.grad.clone()
    optimizers[1].step()
    assert torch.equal(attached[3].weight.grad, unfiltered)


def test_an_optimizer_of_other_weights_is_refused():
    model = small_model()
    with pytest.raises(ValueError, match=r"does not update 0\.weight, which the plan filters"):
        FilterPlan.for_model(model).attach(torch.optim.SGD(model[6].parameters(), lr=0.1))


@pytest.mark.parametrize("given", ["by position", "by name"])
def test_a_closure_is_followed_by_the_filter(given):
    model = small_model()
    expected = descend(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FilterPlan.for_model(model, NOT_IDEMPOTENT).attach(optimizer)

    def closure():
        optimizer.zero_grad()
        return backward(model)

    backward(model, seed=5)  # what the closure throws away
    loss = optimizer.step(closure) if given == "by position" else optimizer.step(closure=closure)
    assert same(weights(model), expected)
    assert loss.item() == backward(small_model()).item()


def test_a_step_with_none_for_a_closure_is_filtered():
    model = small_model()
    expected = descend(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FilterPlan.for_model(model, NOT_IDEMPOTENT).attach(optimizer)
    backward(model)
    optimizer.step(None)
    assert same(weights(model), expected)


def test_lbfgs_sees_filtered_gradients_at_every_evaluation():
    by_hand, attached = small_model(), small_model()
    plan = FilterPlan.for_model(by_hand)
    evaluations = {id(by_hand): 0, id(attached): 0}

    def run(model, finish):
        options = {"lr": 0.1, "max_iter": 4, "line_search_fn": "strong_wolfe"}
        optimizer = torch.optim.LBFGS(model.parameters(), **options)
        handle = FilterPlan.for_model(model).attach(optimizer) if finish is None else None

        def closure():
            evaluations[id(model)] += 1
            optimizer.zero_grad()
            loss = backward(model)
            if finish is not None:
                finish()
            return loss

        optimizer.step(closure)
        return handle

    run(by_hand, plan.filter_grads_)
    run(attached, None)
    assert evaluations[id(attached)] == evaluations[id(by_hand)] > 3
    assert same(weights(attached), weights(by_hand))


def test_a_failing_closure_fails_as_it_is_and_the_next_step_is_filtered():
    model = small_model()
    expected = descend(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FilterPlan.for_model(model, NOT_IDEMPOTENT).attach(optimizer)

    def broken():
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        optimizer.step(broken)
    backward(model)
    optimizer.step()
    assert same(weights(model), expected)


class Careful(torch.optim.SGD):
    """Calls the step of its base class, for which torch runs the hooks again."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("with_closure", [False, True])
def test_the_step_of_a_base_class_filters_no_second_time(with_closure):
    model = small_model()
    expected = descend(model)  # makes an SGD, whose class runs hooks from then on
    optimizer = Careful(model.parameters(), lr=0.1)
    FilterPlan.for_model(model, NOT_IDEMPOTENT).attach(optimizer)
    if with_closure:
        optimizer.step(lambda: backward(model))
    else:
        backward(model)
        optimizer.step()
    assert same(weights(model), expected)


def test_attaching_twice_is_refused_until_the_first_is_removed():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = FilterPlan.for_model(model)
    handle = plan.attach(optimizer)
    again = FilterPlan.for_model(model)
    for other in (plan, again):
        with pytest.raises(ValueError, match=r"filters 0\.weight already; call remove\(\)"):
            other.attach(Wrapper(optimizer))
    handle.remove()
    again.attach(optimizer)


def test_plans_of_different_layers_share_an_optimizer():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    FilterPlan.for_model(model, select=r"^0\.weight").attach(optimizer)
    FilterPlan.for_model(model, NOT_IDEMPOTENT, select=r"^3\.weight").attach(optimizer)
    backward(model)
    exact = [truth(model[0].weight.grad), truth(model[3].weight.grad, **GAUSSIAN)]
    optimizer.step()
    assert distance(model[0].weight.grad, exact[0]) < 1e-6
    assert distance(model[3].weight.grad, exact[1]) < 1e-6


class Wrapper:
    """Holds an optimizer under a name that nobody knows."""

    def __init__(self, optimizer):
        self.anything = optimizer

    param_groups = property(lambda self: self.anything.param_groups)

    def step(self, closure=None):
        return self.anything.step(closure)


class Sharp(torch.optim.Optimizer):
    """A sharpness-aware optimizer in two calls, the second of which steps the base."""

    def __init__(self, params, base, **options):
        super().__init__(params, {})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, rho=0.0):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["here"] = parameter.clone()
                parameter.add_(parameter.grad, alpha=rho)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(self.state[parameter]["here"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure=None):
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()


@pytest.mark.parametrize("depth", [1, 2])
def test_wrapped_optimizers_are_unwrapped(depth):
    model = small_model()
    expected = descend(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(depth):
        optimizer = Wrapper(optimizer)
    FilterPlan.for_model(model, NOT_IDEMPOTENT).attach(optimizer)
    backward(model)
    optimizer.step()
    assert same(weights(model), expected)


@pytest.mark.parametrize("calls", ["step with a closure", "two steps"])
def test_a_sharpness_aware_wrapper_is_filtered_once_where_it_descends(calls):
    model = small_model()
    expected = descend(model)
    optimizer = Sharp(model.parameters(), torch.optim.SGD, lr=0.1)
    FilterPlan.for_model(model, NOT_IDEMPOTENT).attach(optimizer)
    backward(model)
    if calls == "two steps":
        optimizer.first_step()
        backward(model)
        optimizer.second_step()
    else:
        optimizer.step(lambda: backward(model))
    assert same(weights(model), expected)


def test_an_optimizer_that_holds_itself_is_attached_to():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.me, optimizer.outer = optimizer, Wrapper(optimizer)
    FilterPlan.for_model(model).attach(optimizer)


class Homemade:
    """No optimizer of torch, and none inside."""

    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters)}]

    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data - 0.1 * parameter.grad


class Uninitialised(torch.optim.SGD):
    """Never became an optimizer of torch, so torch has no place for its hooks."""

    __init__ = Homemade.__init__


@pytest.mark.parametrize("kind", [Homemade, Uninitialised])
def test_a_step_that_runs_no_hooks_is_refused(kind):
    model = small_model()
    with pytest.raises(TypeError, match=rf"{kind.__name__}\.step\(\) runs no hooks.*filter_grads_"):
        FilterPlan.for_model(model).attach(kind(model.parameters()))


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(TypeError, match=r"must be a torch.optim.Optimizer or wrap one; got Seq"):
        FilterPlan.for_model(small_model()).attach(small_model())


def train_past_the_hook(model, steps):
    stepping = Homemade(model.parameters())
    for seed in range(steps):
        model.zero_grad()
        backward(model, seed)
        stepping.step()


def test_an_optimizer_that_never_steps_is_noticed_once():
    model = small_model()
    FilterPlan.for_model(model).attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.warns(RuntimeWarning, match="SGD has never run the attached filter") as seen:
        train_past_the_hook(model, 8)
    assert len(seen) == 1
    del optimizer


@pytest.mark.parametrize("ended_by", ["a step", "removal", "the optimizer's end"])
def test_no_warning_once_the_filter_has_run_or_is_gone(ended_by):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = FilterPlan.for_model(model).attach(optimizer)
    if ended_by == "a step":
        backward(model)
        optimizer.step()
    elif ended_by == "removal":
        handle.remove()
    else:
        del optimizer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_past_the_hook(model, 6)
    assert not model[0].weight._post_accumulate_grad_hooks


def test_accumulating_over_many_batches_is_no_reason_to_warn():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FilterPlan.for_model(model).attach(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(8):
            backward(model, seed)
        optimizer.step()


def test_an_attached_plan_keeps_nothing_alive_and_its_model_can_be_saved():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FilterPlan.for_model(model).attach(optimizer)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert same(weights(torch.load(file, weights_only=False)), weights(model))
    assert same(weights(copy.deepcopy(model)), weights(model))
    gone = weakref.ref(model[0].weight)
    del model, optimizer
    gc.collect()
    assert gone() is None


def test_all_steps_filter_each_layer_once():
    """Layers divided over two optimizers, one of them wrapped."""
    model = small_model()
    expected = descend(model)
    first = Sharp(model[:2].parameters(), torch.optim.SGD, lr=0.1)
    second = torch.optim.SGD(model[2:].parameters(), lr=0.1)
    backward(model)
    grads = [parameter.grad.clone() for parameter in model[:2].parameters()]

    def closure():
        for parameter, grad in zip(model[:2].parameters(), grads, strict=True):
            parameter.grad = grad.clone()

    with filter_all_steps(FilterPlan.for_model(model, NOT_IDEMPOTENT)):
        first.step(closure)
        second.step()
    assert same(weights(model), expected)


def test_all_steps_and_an_attached_plan_are_one_too_many():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = FilterPlan.for_model(model)
    plan.attach(optimizer)
    with (
        filter_all_steps(plan),
        pytest.raises(ValueError, match=r"filters 0\.weight already"),
    ):
        optimizer.step()


def test_gradient_accumulation_filters_the_sum():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    FilterPlan.for_model(model).attach(optimizer)
    backward(model, 1)
    backward(model, 2)
    exact = truth(model[3].weight.grad)
    optimizer.step()
    assert distance(model[3].weight.grad, exact) < 1e-6


def scaled_step(model, fused, poison=None, **spec):
    """One step under a gradient scaler, perhaps after an overflow; the scaler."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    FilterPlan.for_model(model, FilterSpec(**spec)).attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    torch.manual_seed(0)
    loss = nn.functional.cross_entropy(model(torch.randn(8, 3, 8, 8)), torch.randint(10, (8,)))
    scaler.scale(loss).backward()
    if poison is not None:
        model[0].weight.grad[0, 0, 0, 0] = poison
    scaler.step(optimizer)
    scaler.update()
    return scaler


@pytest.mark.parametrize("nonfinite", ["propagate", "raise"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_under_a_grad_scaler_uses_filtered_gradients(fused, nonfinite):
    plain, scaled = small_model(), small_model()
    backward(plain)
    exact = plain[3].weight.detach().double() - 0.1 * truth(plain[3].weight.grad)
    scaled_step(scaled, fused, nonfinite=nonfinite)
    assert distance(scaled[3].weight.detach(), exact) < 1e-6


@pytest.mark.parametrize("nonfinite", ["propagate", "raise"])
@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_under_a_grad_scaler_skips_the_step(fused, nonfinite):
    model = small_model()
    scaler = scaled_step(model, fused, poison=float("inf"), nonfinite=nonfinite)
    assert scaler.get_scale() == 512.0
    for parameter, untouched in zip(model.parameters(), small_model().parameters(), strict=True):
        assert torch.equal(parameter, untouched)
