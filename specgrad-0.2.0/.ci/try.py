"""Try an install: ``python .ci/try.py ENVIRONMENT BACKEND``, in a folder without the sources."""

import sys

import torch

import specgrad_kernels
from specgrad_kernels import FilterPlan, available_backends, filter_grads_

_, environment, backend = sys.argv
assert specgrad_kernels.__file__.startswith(environment), specgrad_kernels.__file__
assert next(name for name in available_backends() if name != "triton") == backend
grads = [torch.randn(64, 64, 3, 3), torch.randn(16, 3, 3, 3), torch.randn(10_007)]
for method in ("fft", "lap", "gaussian", "centralize"):
    exact, ours = [g.double() for g in grads], [g.clone() for g in grads]
    filter_grads_(exact, method=method, backend="torch")
    filter_grads_(ours, method=method, backend=backend)
    for one, other in zip(exact, ours, strict=True):
        assert (other.double() - one).norm() <= 1e-6 * one.norm(), method
model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Flatten())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
FilterPlan.for_model(model).attach(optimizer)
model(torch.randn(2, 3, 8, 8)).sum().backward()
optimizer.step()
print(f"Python {sys.version.split()[0]}, torch {torch.__version__}: {available_backends()}")
