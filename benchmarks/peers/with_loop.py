"""A plain loop: one process, one model, no library but torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.peers.turns import Turns
from benchmarks.peers.workloads import LEARNING_RATE


def main() -> None:
    turns = Turns()
    clients = turns.workload.batches(turns.channels_last)
    model = turns.workload.model(turns.channels_last)
    weights = list(model.parameters())
    server = [weight.detach().clone() for weight in weights]
    turns.start()
    while True:
        sums = [torch.zeros_like(weight) for weight in server]
        for batches in clients:
            with torch.no_grad():
                torch._foreach_copy_(weights, server)
            for x, y in batches:
                grads = torch.autograd.grad(F.cross_entropy(model(x), y), weights)
                with torch.no_grad():
                    torch._foreach_add_(weights, grads, alpha=-LEARNING_RATE)
            with torch.no_grad():
                torch._foreach_add_(sums, weights)
        torch._foreach_div_(sums, len(clients))
        server = sums
        turns.next(dict(zip(dict(model.named_parameters()), server, strict=True)))


if __name__ == "__main__":
    main()
