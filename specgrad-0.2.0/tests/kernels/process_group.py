"""Process groups for tests; a module of its own because spawned processes import it."""

import contextlib
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from specgrad_kernels import FilterPlan

# A group that ends with the DistributedDataParallel that used it may wait for ever: torch joins
# gloo's thread with the GIL held, and that thread may want the GIL. These end later, without it.
_groups = []


@contextlib.contextmanager
def process_group(rank, size, folder):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size
    )
    _groups.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def single_process_group():
    # torch 2.10 deletes the file itself
    with tempfile.TemporaryDirectory() as folder, process_group(0, 1, folder):
        yield


def train_in_parallel(rank, folder):
    """One step of two data-parallel processes with an attached plan."""
    torch.set_num_threads(1)
    with process_group(rank, 2, folder):
        torch.manual_seed(0)
        model = nn.Conv2d(8, 16, 3)
        parallel = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.0)
        FilterPlan.for_model(model).attach(optimizer)
        torch.manual_seed(rank + 1)
        parallel(torch.randn(4, 8, 6, 6)).square().mean().backward()
        averaged = model.weight.grad.clone()
        optimizer.step()
        torch.save({"averaged": averaged, "filtered": model.weight.grad}, f"{folder}/{rank}.pt")
