"""``centralize`` against means written out."""

import pytest
import torch
from helpers import DTYPES, TOLERANCE, distance, filtered

from specgrad_kernels import FilterPlan, FilterSpec, filter_grads_

SHAPES = [(16, 8, 3, 3), (7, 11), (5, 1, 3, 3), (2, 70_001), (3, 4, 129)]


def centred(grad, dims):
    """The definition, in float64."""
    exact = grad.double()
    return exact - exact.mean(dim=tuple(range(dims, exact.dim())), keepdim=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("group_dims", [0, 1, 2])
def test_subtracts_the_mean_of_each_group(backend, shape, dtype, group_dims):
    grad = (torch.randn(shape, dtype=torch.float64) + 3).to(dtype)
    actual = filtered(grad, method="centralize", group_dims=group_dims, backend=backend)
    if group_dims >= len(shape):
        assert torch.equal(actual, grad)
        return
    error = actual.double() - centred(grad, group_dims)
    assert error.norm() <= TOLERANCE[dtype] * grad.double().norm()


def test_each_output_filter_by_default(backend):
    grad = torch.randn(16, 8, 3, 3)
    actual = filtered(grad, method="centralize", backend=backend)
    assert distance(actual, centred(grad, 1)) < 1e-6


@pytest.mark.parametrize("shape", [(50,), (), (6, 1, 1, 1), (0, 3)], ids=str)
def test_what_has_no_group_is_left_alone(backend, shape):
    grad = torch.randn(shape)
    assert torch.equal(filtered(grad, method="centralize", backend=backend), grad)


def test_with_an_order_it_centres_input_channels(backend):
    grad = torch.randn(16, 8, 3, 5)
    actual = filtered(grad, method="centralize", order="1023", backend=backend)
    assert distance(actual, grad.double() - grad.double().mean((0, 2, 3), keepdim=True)) < 1e-6


def test_strided_gradients_and_stacks(backend):
    grad = torch.randn(4, 6, 8, 3, 3).to(memory_format=torch.contiguous_format)
    strided = grad.permute(0, 2, 1, 4, 3)
    actual = filtered(strided, method="centralize", batch_dims=1, backend=backend)
    exact = strided.double() - strided.double().mean((2, 3, 4), keepdim=True)
    assert distance(actual, exact) < 1e-6


def test_only_the_groups_are_written(backend):
    """Rows of a wider matrix: what lies between them stays."""
    wide = torch.randn(9, 40)
    before = wide.clone()
    filter_grads_([wide[:, 3:30]], method="centralize", backend=backend)
    assert torch.equal(wide[:, :3], before[:, :3])
    assert torch.equal(wide[:, 30:], before[:, 30:])
    assert distance(wide[:, 3:30], centred(before[:, 3:30], 1)) < 1e-6


@pytest.mark.parametrize("order", ["random:3", [1, 0]], ids=str)
def test_an_order_of_samples_is_refused(order):
    with pytest.raises(ValueError, match="order must permute axes where group_dims=1"):
        FilterSpec("centralize", order=order)
    with pytest.raises(ValueError, match="group_dims must be a non-negative integer; got -1"):
        FilterSpec("centralize", group_dims=-1)


def test_a_plan_describes_it(backend):
    layer = torch.nn.Parameter(torch.zeros(16, 8, 3, 3))
    plan = FilterPlan([("conv", layer)], FilterSpec("centralize"), backend=backend)
    assert plan.layers[0].d == 72
    assert plan.layers[0].error_bound < 1e-5


LAYOUTS = {
    "transposed": lambda grad: grad.transpose(0, 1).contiguous().transpose(0, 1),
    "reversed": lambda grad: (
        grad.permute(*reversed(range(grad.dim())))
        .clone(memory_format=torch.contiguous_format)
        .permute(*reversed(range(grad.dim())))
    ),
    "sliced": lambda grad: torch.stack([grad, grad], -1)[..., 0],
    "channels_last": lambda grad: grad.movedim(1, -1).contiguous().movedim(-1, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(9, 70, 3, 3), (150, 71), (40, 3, 5, 5), (1050, 1100)], ids=str)
def test_a_strided_gradient_has_the_bits_of_its_contiguous_copy(native, shape, dtype, layout):
    grad = torch.randn(shape).to(dtype)
    for group_dims in (0, 1, 2):
        options = {"method": "centralize", "group_dims": group_dims, "backend": "cpp"}
        strided = LAYOUTS[layout](grad.clone())
        filter_grads_([strided], **options)
        assert torch.equal(strided, filtered(grad, **options))
