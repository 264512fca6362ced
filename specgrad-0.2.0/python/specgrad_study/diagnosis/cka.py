"""Linear centred kernel alignment: how similar the features of two models are.

1 for features that are the same up to rotation, scale and shift, 0 for unrelated ones. The plain
form is far above 0 for unrelated features when they outnumber the samples; the debiased one is
not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LEAST_BATCH = 4


def hsic1(k: Tensor, l: Tensor) -> float:  # noqa: E741 - the names of the literature
    """Unbiased HSIC of two kernel matrices ``[n, n]``, whose diagonals are ignored."""
    n = len(k)
    if n < LEAST_BATCH:
        raise ValueError(f"the batch has {n} samples; the debiased estimate needs {LEAST_BATCH}")
    k, l = (each - torch.diag(torch.diagonal(each)) for each in (k, l))  # noqa: E741
    rows_k, rows_l = k.sum(1), l.sum(1)
    joint = (k * l).sum() - 2 / (n - 2) * (rows_k @ rows_l)
    means = rows_k.sum() * rows_l.sum() / ((n - 1) * (n - 2))
    return float((joint + means) / (n * (n - 3)))


def debiased_cka(features: Sequence[Tensor], batch: int = 200) -> Tensor:
    """Debiased minibatch CKA between all pairs of models, ``float64 [m, m]``.

    features: for each model ``[n, p]``, features of the same samples in the same order
    batch: samples of a minibatch; a shorter last one is left out

    A model whose features do not vary is similar to none: its entries are NaN.

    >>> x = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    >>> debiased_cka([x, 3 * x.flip(1) + 1])
    tensor([[1.0000, 1.0000],
            [1.0000, 1.0000]], dtype=torch.float64)
    """
    counts = {len(each) for each in features}
    if len(counts) != 1:
        raise ValueError(f"features must be of the same samples; got {sorted(counts)} of them")
    samples = counts.pop()
    batch = min(batch, samples)
    models = len(features)
    sums = torch.zeros(models, models, dtype=torch.float64)
    for start in range(0, samples - batch + 1, batch):
        parts = [each[start : start + batch].double().flatten(1) for each in features]
        # HSIC does not see a shift, and kernels of centred features round less
        kernels = [(part - part.mean(0)) @ (part - part.mean(0)).T for part in parts]
        for i in range(models):
            for j in range(i, models):
                sums[i, j] += hsic1(kernels[i], kernels[j])
    own = sums.diagonal().clamp(min=0).sqrt()
    sums = sums.triu() + sums.triu(1).T
    return sums / torch.outer(own, own)
