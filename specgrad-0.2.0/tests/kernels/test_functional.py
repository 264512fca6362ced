"""``filter_grads``: the same values as in place, and a derivative that autograd can check."""

import pytest
import torch
from helpers import filtered, small_model
from torch.autograd import forward_ad

from specgrad_kernels import FilterPlan, filter_grads, filter_grads_
from specgrad_kernels.kinds import METHODS

OPTIONS = {
    "fft": {"ratio": 0.3},
    "lap": {"window": 5},
    "gaussian": {"sigma": 1.5, "boundary": "reflect"},
    "spectrum": {"gains": [(0, 0.2), (0.5, 1)]},
    "fft_high": {"ratio": 0.3},
    "random": {"ratio": 0.3},
    "l2": {"ratio": 0.3},
    "fft2d": {"ratio": 0.5},
}
CASES = [(method, OPTIONS.get(method, {})) for method in METHODS] + [
    ("lap", {"window": 7, "boundary": "replicate"}),
    ("lap", {"window": 5, "order": "201"}),
    ("gaussian", {"sigma": 2.0, "boundary": "circular"}),
    ("l2", {"ratio": 0.4, "order": "random:3"}),
    ("fft", {"ratio": [0.2, 0.6]}),
]


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("method", "options"), CASES, ids=str)
def test_gradcheck_and_gradgradcheck(method, options):
    grads = [randn(2, 3, 4).requires_grad_(), randn(3, 2, 5).add(1).requires_grad_()]

    def function(*tensors):
        return tuple(filter_grads(tensors, method, **options))

    assert torch.autograd.gradcheck(function, grads, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, grads)


@pytest.mark.parametrize(("method", "options"), CASES, ids=str)
def test_values_are_those_of_the_filter_in_place(method, options):
    first, second = randn(4, 6, 5).float(), randn(3, 5, 4).float()
    before = first.clone()
    actual = filter_grads([first, None, second], method, **_with_none(options))
    expected = [first.clone(), second.clone()]
    filter_grads_(expected, method, **options)
    assert torch.equal(first, before)
    assert actual[1] is None
    torch.testing.assert_close([actual[0], actual[2]], expected, rtol=0, atol=1e-6)


def _with_none(options):
    """The options for a list with a missing gradient in its middle."""
    if not isinstance(options.get("ratio"), list):
        return options
    first, last = options["ratio"]
    return {**options, "ratio": [first, 0.5, last]}


@pytest.mark.parametrize("method", ["fft", "lap", "centralize"])
def test_torch_func_differentiates_through_it(method):
    x, weight = randn(6, 10), randn(6, 10)

    def loss(x):
        (y,) = filter_grads([x], method)
        return (weight * y).sum()

    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), expected)
    _, tangent = torch.func.jvp(loss, (x,), (weight,))
    torch.testing.assert_close(tangent, (expected * weight).sum())
    jacobian = torch.func.jacrev(lambda x: filter_grads([x], method)[0])(x)
    assert jacobian.shape == (6, 10, 6, 10)
    torch.testing.assert_close((jacobian * weight[..., None, None]).sum((0, 1)), expected)
    stack = torch.stack([x, 2 * x])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(stack)[1], expected)
    mapped = torch.vmap(lambda x: filter_grads([x, weight], method)[0], in_dims=1)(
        stack.movedim(0, 1)
    )
    torch.testing.assert_close(mapped[1], 2 * filtered(x, method=method))


def test_in_place_inside_a_derivative_is_refused():
    """It would be taken for the identity."""

    def loss(x):
        y = x.clone()
        filter_grads_([y])
        return y.square().sum()

    x = randn(100)
    sentence = r"grads\[0\] is being differentiated.* use filter_grads, which"
    for transform in (torch.func.grad(loss), torch.func.jacrev(loss), torch.func.hessian(loss)):
        with pytest.raises(ValueError, match=sentence):
            transform(x)
    with pytest.raises(ValueError, match=sentence):
        torch.func.jvp(loss, (x,), (x,))
    with pytest.raises(ValueError, match=sentence):
        torch.vmap(torch.func.grad(loss))(torch.stack([x, x]))
    with forward_ad.dual_level(), pytest.raises(ValueError, match=sentence):
        filter_grads_([forward_ad.make_dual(x, x)])
    with forward_ad.dual_level():  # a tensor without a tangent is filtered
        filter_grads_([x])
    assert x.mean().abs() < 1e-12


def test_gradients_with_a_graph_are_filtered_without_one():
    """After backward(create_graph=True) the step ignores the graph, and so does the filter."""
    model = small_model()
    plan = FilterPlan.for_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan.attach(optimizer)
    loss = model(torch.randn(4, 3, 8, 8)).square().mean()
    loss.backward(create_graph=True)
    expected = [filtered(p.grad.detach()) for p in plan.parameters]
    assert plan.parameters[0].grad.requires_grad
    optimizer.step()
    for parameter, exact in zip(plan.parameters, expected, strict=True):
        assert torch.equal(parameter.grad.detach(), exact)
    leaf = torch.randn(100, requires_grad=True)
    with torch.no_grad():
        filter_grads_([leaf])
    assert leaf.mean().abs() < 1e-6
