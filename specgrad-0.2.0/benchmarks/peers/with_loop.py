"""Loops that need no library but torch, in one process: as they are written, and a bare one.

The plain loop loads the server's ``state_dict`` for each client and steps ``torch.optim.SGD``. The
bare loop leaves out whatever this workload does not need: no optimizer, no ``.grad``, no names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.turns import Turns
from benchmarks.peers.workloads import LEARNING_RATE

Weights = dict[str, Tensor]


def plain(turns: Turns) -> Iterator[Weights]:
    """The server's weights after each round."""
    clients = turns.workload.batches(turns.channels_last)
    model = turns.workload.model(turns.channels_last)
    server = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    while True:
        sums = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
        for batches in clients:
            model.load_state_dict(server)
            optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            for name, tensor in model.state_dict().items():
                sums[name] += tensor
        server = {name: total / len(clients) for name, total in sums.items()}
        yield server


def bare(turns: Turns) -> Iterator[Weights]:
    """The server's weights after each round, with as few calls as there can be."""
    clients = turns.workload.batches(turns.channels_last)
    model = turns.workload.model(turns.channels_last)
    names, weights = list(dict(model.named_parameters())), list(model.parameters())
    server = [weight.detach().clone() for weight in weights]
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
        yield dict(zip(names, server, strict=True))


LOOPS: dict[str, Callable[[Turns], Iterator[Weights]]] = {"plain": plain, "bare": bare}


def main() -> None:
    turns = Turns()
    rounds = LOOPS[os.environ["PEER_VARIANT"]](turns)
    turns.start()
    for weights in rounds:
        turns.next(weights)


if __name__ == "__main__":
    main()
