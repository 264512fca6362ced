"""A strided gradient must give the result of its contiguous copy, without one where possible."""

import pytest
import torch
from representatives import only
from triton_tools.compare import random_grads

from specgrad_kernels import filter_grads_
from specgrad_kernels.backends.triton import binding, launch
from specgrad_kernels.spec import FilterSpec

METHODS = ["fft", "lap", "gaussian"]


def _channels_last():
    return random_grads([(16, 8, 3, 3)])[0].to(memory_format=torch.channels_last)


def _permuted():
    return random_grads([(16, 8, 3, 3)])[0].permute(0, 2, 3, 1)


def _every_second():
    return random_grads([(2304 // 2, 4)])[0][:, ::2]


def _many_dimensions():
    return random_grads([(2, 3, 4, 3, 4, 8)])[0].permute(5, 4, 3, 2, 1, 0)


LAYOUTS = [_channels_last, _permuted, _every_second, _many_dimensions]


@pytest.mark.parametrize("make", LAYOUTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("method", only(["fft", "lap"], METHODS))
def test_layout_does_not_change_the_result(method, make):
    spec = FilterSpec(method=method)
    strided = make()
    assert not strided.is_contiguous()
    plain = strided.contiguous()
    beside = random_grads([432])[0]
    launch.run([strided, beside], spec)
    launch.run([plain], spec)
    assert (strided - plain).norm() < 1e-7 * plain.norm()


def test_only_layouts_that_cannot_be_walked_are_copied():
    spec = FilterSpec()
    for make in LAYOUTS:
        copied = launch.calls.find([make()], spec).copied
        assert bool(copied) is (make is _many_dimensions)


@pytest.mark.parametrize("method", METHODS)
def test_stacks_are_filtered_entry_by_entry(method):
    stack = random_grads([(2, 2, 16, 27)])[0]
    entries = [entry.clone() for entry in stack.reshape(4, 16, 27)]
    launch.run([stack], FilterSpec(method=method, batch_dims=2))
    launch.run(entries, FilterSpec(method=method))
    assert torch.equal(stack.reshape(4, 16, 27), torch.stack(entries))


def test_transposed_stacks():
    stack = random_grads([(24, 3, 18)])[0].transpose(0, 1)
    plain = stack.contiguous()
    launch.run([stack], FilterSpec(batch_dims=1))
    launch.run([plain], FilterSpec(batch_dims=1))
    assert (stack - plain).norm() < 1e-7 * plain.norm()


def test_axis_orders_through_the_public_call():
    grad = random_grads([(16, 8, 3, 3)])[0]
    expected = grad.clone()
    filter_grads_([grad], order="0231", backend="triton")
    filter_grads_([expected], order="0231", backend="torch")
    assert (grad - expected).norm() < 1e-6 * expected.norm()


def test_versions_are_bumped_so_autograd_notices():
    grad = random_grads([432])[0]
    version = grad._version
    launch.run([grad], FilterSpec())
    assert grad._version > version


def test_moved_gradients_are_found_again():
    first, second = random_grads([2304])[0], random_grads([2304], seed=1)[0]
    expected = second.clone()
    launch.run([first], FilterSpec())
    launch.run([second], FilterSpec())
    launch.run([expected], FilterSpec())
    assert torch.equal(second, expected)


def test_empty_gradients_and_identities_launch_nothing():
    grads = [torch.empty(0), torch.ones(5)]
    launch.run(grads, FilterSpec())
    assert torch.equal(grads[1], torch.ones(5))
    assert launch.calls.find(grads, FilterSpec()).launches == 0


def test_gradients_that_share_memory_are_refused():
    grad = random_grads([2304])[0]
    for _ in range(2):
        with pytest.raises(ValueError, match="share memory"):
            launch.run([grad, grad[:432]], FilterSpec())


@pytest.mark.parametrize("count", [1, 7, 8, 9, 20])
def test_addresses_arrive_as_arguments(count):
    numbers = [2**40 + 16 * index for index in range(count)]
    table = binding.AddressTable(count, torch.device("cpu"), 0)
    table.write(numbers)
    assert table.tensor[:count].tolist() == numbers
