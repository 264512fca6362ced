"""Steps of sharded training; a module of its own because spawned processes import it."""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from specgrad_kernels import FilterPlan, FilterSpec, sharded

# 5 rows are uneven over 2 and 4 processes; of 1 and 3 rows some of them have none
ROWS = (5, 1, 3, 8)
SPECS = (
    FilterSpec(),
    FilterSpec(ratio=(0.05, 0.1, 0.2, 0.3)),
    FilterSpec("lap", window=5),
    FilterSpec("lap", window=9, boundary="reflect"),
    FilterSpec("gaussian", ratio=(0.3, 0.2, 0.3, 0.2), boundary="replicate"),
    FilterSpec("gaussian", sigma=1.5, boundary="circular"),
    FilterSpec("centralize"),
    FilterSpec("centralize", group_dims=2),
    FilterSpec("centralize", group_dims=0),
    FilterSpec("centralize", order="1023"),
    FilterSpec("spectrum", gains=((0.0, 0.2), (0.5, 1.0))),
    FilterSpec("fft_high"),
    FilterSpec("random", seed=3),
    FilterSpec("l2"),
    FilterSpec("fft2d"),
    FilterSpec(order="random:7"),
    FilterSpec(nonfinite="raise"),
)
SENDS_NOTHING = (FilterSpec("centralize"), FilterSpec("centralize", group_dims=2))
SENDS_LITTLE = (
    FilterSpec(),
    FilterSpec("lap"),
    FilterSpec("gaussian", boundary="circular"),
    FilterSpec("centralize", group_dims=0),
    FilterSpec("random", seed=3),
)


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    sizes = (3, *ROWS)
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*(nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)).to(dtype)


def weights(model):
    return [(name, each) for name, each in model.named_parameters() if each.dim() > 1]


def draw_grads(dtype):
    torch.manual_seed(1)
    return [torch.randn_like(weight) for _, weight in weights(make_model(dtype))]


def expected(spec, dtype):
    """The unsharded result, and the error that is promised for each layer."""
    model = make_model(dtype)
    plan = FilterPlan(weights(model), spec)
    grads = draw_grads(dtype)
    plan.filter_grads_(grads)
    return grads, [layer.error_bound for layer in plan.layers]


def check(spec, dtype, mesh, keep_plain=()):
    """One attached step, with some layers left whole in every process."""
    model = make_model(dtype)
    plain = [model[index] for index in keep_plain]
    fully_shard(model, mesh=mesh, ignored_params={p for part in plain for p in part.parameters()})
    named, drawn = weights(model), draw_grads(dtype)
    for (_, weight), grad in zip(named, drawn, strict=True):
        if isinstance(weight, DTensor):
            grad = distribute_tensor(grad, mesh, weight.placements, src_data_rank=None)
        weight.grad = grad.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FilterPlan(named, spec).attach(optimizer)
    optimizer.step()
    results = [w.grad.full_tensor() if isinstance(w, DTensor) else w.grad for _, w in named]
    for result, exact, bound, grad in zip(results, *expected(spec, dtype), drawn, strict=True):
        error = (result - exact).double().norm() / grad.double().norm()
        assert error <= bound, (spec, dtype, keep_plain, tuple(grad.shape), error, bound)


def check_backward(mesh):
    """Gradients that a backward pass has averaged and sharded."""
    torch.manual_seed(2)
    x = torch.randn(2, 3, 6, 6)
    whole, model = make_model(), make_model()
    fully_shard(model, mesh=mesh)
    for each in (whole, model):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        FilterPlan.for_model(each, select="all_conv").attach(optimizer, max_norm=1.0)
        each(x).square().mean().backward()
        optimizer.step()
    for (name, one), (_, other) in zip(
        whole.named_parameters(), model.named_parameters(), strict=True
    ):
        torch.testing.assert_close(other.full_tensor(), one, msg=name)


def check_bytes(mesh, processes):
    """At most a quarter of the gradient is sent; of a sum over processes every byte twice."""
    sent = []
    reduce, gather = dist.all_reduce, dist.all_gather

    def reduced(tensor, **options):
        sent.append(2 * tensor.nbytes)
        return reduce(tensor, **options)

    def gathered(received, tensor, **options):
        sent.append(tensor.nbytes * len(received))
        return gather(received, tensor, **options)

    dist.all_reduce, dist.all_gather = reduced, gathered
    try:
        for spec in SENDS_LITTLE:
            grad = torch.randn(6 * processes, 32, 3, 3, generator=torch.Generator().manual_seed(4))
            filtered = grad.clone()
            FilterPlan([("weight", filtered)], spec).filter_grads_([filtered])
            shards = distribute_tensor(grad, mesh, [Shard(0)], src_data_rank=None)
            sent.clear()
            sharded.filter_sharded_([shards], spec, "auto")
            assert 0 < sum(sent) <= grad.nbytes / 4, (spec, sum(sent), grad.nbytes)
            torch.testing.assert_close(shards.full_tensor(), filtered, rtol=0, atol=1e-5)
    finally:
        dist.all_reduce, dist.all_gather = reduce, gather


def check_refusals(mesh, rank):
    """A NaN in one process stops all of them, with nothing changed; a pending sum is refused."""
    grads = [
        distribute_tensor(g, mesh, [Shard(0)], src_data_rank=None)
        for g in draw_grads(torch.float32)
    ]
    if rank == 1:
        grads[3].to_local()[0, 0, 0, 0] = float("nan")
    before = [grad.to_local().clone() for grad in grads]
    with pytest.raises(FloatingPointError, match=r"grads\[3\]"):
        sharded.filter_sharded_(grads, FilterSpec(nonfinite="raise"), "auto")
    for grad, old in zip(grads, before, strict=True):
        assert torch.equal(grad.to_local(), old) or grad.to_local().isnan().any()
    pending = DTensor.from_local(torch.ones(4, 4), mesh, [Partial()])
    with pytest.raises(TypeError, match="sum over processes is pending"):
        sharded.filter_sharded_([pending], FilterSpec(), "auto")


def run(rank, folder, processes):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=processes
    )
    mesh = init_device_mesh("cpu", (processes,))
    divided, gathered = sharded._filter_divided, sharded._filter_gathered
    for spec in SPECS:
        sharded._filter_divided = divided if spec not in SENDS_NOTHING else None
        check(spec, torch.float32, mesh)
    sharded._filter_divided, sharded._filter_gathered = divided, None
    check_bytes(mesh, processes)
    sharded._filter_gathered = gathered
    for dtype in (torch.float64, torch.bfloat16):
        for spec in SPECS[:3]:
            check(spec, dtype, mesh)
    check(SPECS[1], torch.float32, mesh, keep_plain=(0, 3))
    check_backward(mesh)
    check_refusals(mesh, rank)
    dist.destroy_process_group()
