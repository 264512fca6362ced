"""The float64 truth, what the tests measure against it, and a small model to train."""

import numpy as np
import pytest
import torch
from torch import nn

from specgrad_kernels import filter_grads_

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# relative l2 distance to the float64 reference; half types are computed in float32 and rounded
# once at the end, which costs up to half a unit in the last of 8 or 11 binary digits
TOLERANCE = {
    torch.float32: 1e-6,
    torch.float64: 1e-13,
    torch.bfloat16: 2**-8 + 1e-6,
    torch.float16: 2**-11 + 1e-6,
}

needs_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).eps > 1e-18, reason="long double is no wider than double here"
)


def truth(grad, **options):
    """The filtered gradient by the reference equations in float64."""
    exact = grad.detach().double().contiguous().clone()
    options.pop("strategy", None)
    options.pop("backend", None)
    filter_grads_([exact], backend="torch", **options)
    return exact


def distance(actual, expected):
    """Relative l2 distance, absolute where the expected norm is zero."""
    norm = expected.norm().item()
    return (actual.double() - expected).norm().item() / (norm or 1.0)


def filtered(grad, **options):
    """A filtered copy with the same strides."""
    copy = torch.empty_strided(grad.shape, grad.stride(), dtype=grad.dtype).copy_(grad)
    filter_grads_([copy], **options)
    return copy


def small_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.GroupNorm(2, 16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def backward(model, seed=0):
    torch.manual_seed(seed)
    loss = nn.functional.cross_entropy(model(torch.randn(8, 3, 8, 8)), torch.randint(10, (8,)))
    loss.backward()
    return loss
