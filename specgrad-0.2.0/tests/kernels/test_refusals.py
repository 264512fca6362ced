"""Bad input is refused with a sentence that helps, and every gradient is left as it was."""

import pytest
import torch

from specgrad_kernels import FilterPlan, filter_grads_


def same_bytes(one, other):
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def refused(grads, error, match, **options):
    before = [grad.clone() if isinstance(grad, torch.Tensor) else grad for grad in grads]
    with pytest.raises(error, match=match):
        filter_grads_(grads, **options)
    for grad, old in zip(grads, before, strict=True):
        if isinstance(grad, torch.Tensor) and grad.layout is torch.strided and not grad.is_meta:
            assert same_bytes(grad, old)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ratio": 1.0}, r"ratio must lie in \[0, 1\); got 1.0"),
        ({"ratio": -0.1}, r"ratio must lie in \[0, 1\); got -0.1"),
        ({"ratio": float("nan")}, "ratio must be a number"),
        ({"ratio": [0.1, 2]}, r"ratio must lie in \[0, 1\); got 2"),
        ({"ratio": [0.1, 0.2, 0.3]}, "ratio has 3 entries for 2 tensors"),
        ({"ratio": []}, "ratio has 0 entries for 2 tensors"),
        ({"method": "fir"}, "method must be one of fft, lap"),
        (
            {"method": "lap", "window": 24},
            "window must be a positive odd integer below 1,000,000; got 24",
        ),
        (
            {"method": "lap", "window": -3},
            "window must be a positive odd integer below 1,000,000; got -3",
        ),
        (
            {"method": "lap", "window": 2.5},
            "window must be a positive odd integer below 1,000,000; got 2.5",
        ),
        (
            {"method": "gaussian", "sigma": 0.0},
            "sigma must be positive and at most 1,000,000; got 0.0",
        ),
        ({"method": "gaussian", "sigma": float("inf")}, "sigma must be positive and at most"),
        ({"boundary": "zero"}, "boundary must be one of count, circular"),
        ({"order": "0223"}, "order must permute the axes"),
        ({"order": "023"}, "order '023' names 3 axes|order must permute"),
        ({"order": "021"}, r"order '021' names 3 axes; grads\[0\] has 1"),
        ({"order": [0, 2]}, "order must hold every index"),
        ({"order": [1, 0]}, "order permutes 2 samples; a gradient has 200"),
        ({"batch_dims": -1}, "batch_dims must be a non-negative integer; got -1"),
        ({"batch_dims": 2}, r"grads\[0\] has 1 dimensions, fewer than batch_dims=2"),
        ({"nonfinite": "ignore"}, "nonfinite must be one of propagate, raise"),
        ({"strategy": "fast"}, "strategy must be one of auto, dense"),
        ({"backend": "cuda"}, "backend must be one of auto"),
        ({"method": "fft2d"}, "fft2d needs two kernel dimensions"),
        ({"seed": 1.5}, "seed must be an integer"),
    ],
)
def test_arguments(options, match):
    refused([torch.randn(200), torch.randn(300)], ValueError, match, **options)


@pytest.mark.parametrize(
    ("grad", "match"),
    [
        (torch.ones(50, dtype=torch.int32), "dtype torch.int32; expected one of float32"),
        (torch.ones(50, dtype=torch.complex64), "dtype torch.complex64"),
        (torch.ones(50, dtype=torch.bool), "dtype torch.bool"),
        (torch.ones(50, dtype=torch.float8_e4m3fn), "dtype torch.float8_e4m3fn"),
        (torch.eye(8).to_sparse(), "layout torch.sparse_coo; only dense gradients"),
        (torch.eye(8).to_sparse_csr(), "layout torch.sparse_csr"),
        (torch.empty(50, device="meta"), "meta tensor|on meta"),
        ([1.0, 2.0], "must be a tensor or None; got list"),
        (3.0, "must be a tensor or None; got float"),
    ],
    ids=str,
)
@pytest.mark.parametrize("position", [0, 1])
def test_kinds_of_tensors(backend, grad, match, position):
    grads = [torch.randn(500), torch.randn(500)]
    grads.insert(position, grad)
    refused(grads, (TypeError, ValueError), match, backend=backend)


def test_a_single_tensor_is_not_taken_for_its_rows(backend):
    grad = torch.randn(40, 50)
    before = grad.clone()
    plan = FilterPlan([("weight", torch.nn.Parameter(torch.zeros(50)))], backend=backend)
    with pytest.raises(TypeError, match=r"got a single tensor, pass \[grad\]"):
        filter_grads_(grad, backend=backend)
    with pytest.raises(TypeError, match=r"got a single tensor, pass \[grad\]"):
        plan.filter_grads_(grad[:1])
    assert same_bytes(grad, before)


class Wrapper(torch.Tensor):
    """A tensor that stands for others, and has no memory of its own."""

    @staticmethod
    def __new__(cls, *shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


def test_tensors_without_memory(backend):
    """The layout is known already, so it is the kernel that sees it."""
    if backend != "cpp":
        pytest.skip("others ask the tensor to compute")
    grads = [torch.randn(500), torch.randn(500)]
    filter_grads_(grads, backend=backend)
    before = grads[0].clone()
    with pytest.raises(ValueError, match="no memory of its own; pass the tensors that it is made"):
        filter_grads_([grads[0], Wrapper(500)], backend=backend)
    assert same_bytes(grads[0], before)


def test_gradients_that_require_grad(backend):
    grads = [torch.randn(500), torch.randn(500, requires_grad=True)]
    refused(grads, ValueError, "requires grad, and the filter is not", backend=backend)


def test_overlapping_tensors(backend):
    storage = torch.randn(1000)
    refused([storage[:600], storage[500:]], ValueError, "share memory", backend=backend)
    same = torch.randn(500)
    refused([same, torch.randn(3), same], ValueError, "pass each tensor once", backend=backend)
    expanded = torch.randn(1, 90).expand(4, 90)
    with pytest.raises(ValueError, match="shares memory with itself"):
        filter_grads_([expanded], backend=backend)
    sliding = torch.randn(100).as_strided((40, 30), (1, 2))
    with pytest.raises(ValueError, match="shares memory with itself"):
        filter_grads_([sliding], backend=backend)


def test_interleaved_views_do_not_overlap(backend):
    storage = torch.randn(2000)
    expected = [storage[0::2].clone(), storage[1::2].clone()]
    filter_grads_(expected, backend=backend)
    filter_grads_([storage[0::2], storage[1::2]], backend=backend)
    torch.testing.assert_close(storage[0::2], expected[0])
    torch.testing.assert_close(storage[1::2], expected[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_nonfinite_can_be_refused_before_anything_is_written(backend, bad, dtype):
    grads = [torch.randn(500).to(dtype), torch.randn(40, 30).to(dtype).t()]
    grads[1][3, 7] = bad
    options = {"nonfinite": "raise", "backend": backend}
    refused(grads, FloatingPointError, r"grads\[1\].* holds NaN or Inf", **options)
    grads[1][3, 7] = 0
    filter_grads_(grads, **options)


def test_distributed_shards():
    from process_group import single_process_group
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    with single_process_group():
        mesh = DeviceMesh("cpu", [0])
        shard = distribute_tensor(torch.randn(64, 9), mesh, [Shard(0)])
        with pytest.raises(TypeError, match="flattening of a shard is not that of its layer"):
            filter_grads_([torch.randn(100), shard])


def test_nan_is_looked_for_with_one_answer_for_all_gradients():
    """Every number that is read back from a GPU waits for it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from specgrad_kernels import checks

    class Answers(TorchDispatchMode):
        read = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.read += function is torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    with Answers() as answers:
        checks.check_finite([torch.randn(5) for _ in range(9)])
    assert answers.read <= 1
