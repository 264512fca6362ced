"""Sharpness of the loss for filtered steps.

A step moves the weights by the learning rate times the filtered gradient. Where the loss has the
Hessian ``H`` and the filter is the matrix ``F``, that multiplies a distance from the minimum by
``1 - lr F H``: along an eigenvector of ``F H`` whose eigenvalue is above ``2 / lr``, every step
ends farther away than it began. The largest eigenvalue is called sharpness here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from specgrad_fl.vectors import FlatModel
from torch import Tensor

from specgrad_study.diagnosis.effects import Filtering

UNFILTERED = "no filter"
# iterations: started from the gradient, they give the eigenvalue of a ResNet-8 to 0.2 %
STEPS = 10
# share of the largest entry below which a residual is rounding error
_NOTHING = 1e-6


def largest_eigenvalue(
    product: Callable[[Tensor], Tensor], start: Tensor, steps: int = STEPS
) -> float:
    """Largest real part of a linear map's eigenvalues, by Arnoldi's iteration.

    >>> scale = torch.tensor([3.0, -5.0, 1.0])
    >>> round(largest_eigenvalue(lambda vector: scale * vector, torch.ones(3)), 4)
    3.0
    """
    if not start.norm() > 0:
        raise ValueError("the gradient is zero: sharpness is sought from where it points")
    basis = [start / start.norm()]
    small = torch.zeros(steps + 1, steps, dtype=torch.float64)
    for step in range(steps):
        vector = product(basis[step])
        for row, known in enumerate(basis):
            small[row, step] = float(torch.dot(known, vector))
            vector = vector - small[row, step] * known
        length = vector.norm()
        small[step + 1, step] = float(length)
        if small[step + 1, step] <= _NOTHING * small.abs().max():
            break
        basis.append(vector / length)
    found = torch.linalg.eigvals(small[: step + 1, : step + 1])
    return float(found.real.max())


def sharpness(
    flat: FlatModel, loss: Tensor, plans: Mapping[str, Filtering | None]
) -> dict[str, float]:
    """Sharpness of ``loss`` for steps through each filter; ``flat.grads`` is overwritten."""
    weights = [flat.model.get_parameter(name) for name in flat.segments]
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    start = torch.cat([each.detach().reshape(-1) for each in gradients])

    def curvature(along: Tensor, plan: Filtering | None) -> Tensor:
        pieces = list(flat.named(along).values())
        turned = torch.autograd.grad(
            gradients, weights, pieces, retain_graph=True, materialize_grads=True
        )
        flat.grads.copy_(torch.cat([each.reshape(-1) for each in turned]))
        if plan is not None:
            plan.filter_grads_()
        return flat.grads.clone()

    return {
        label: largest_eigenvalue(functools.partial(curvature, plan=plan), start)
        for label, plan in plans.items()
    }
