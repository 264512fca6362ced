"""Shared by the tests of the operator."""

import pytest
import torch

from specgrad_kernels import available_backends


@pytest.fixture(params=["torch", "cpp"])
def backend(request):
    if request.param not in available_backends():
        pytest.skip(f"backend {request.param} is not available here")
    return request.param


@pytest.fixture
def backends():
    """Both, where the native one is available."""
    return [name for name in ("torch", "cpp") if name in available_backends()]


@pytest.fixture
def native():
    """The native backend."""
    from specgrad_kernels.backends import cpp

    if cpp.why_not():
        pytest.skip(f"native backend: {cpp.why_not()}")
    return cpp


@pytest.fixture
def threads():
    """Sets the number of torch threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
