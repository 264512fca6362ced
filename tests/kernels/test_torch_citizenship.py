"""The operator inside PyTorch: schema checks, compiled graphs, data parallelism."""

import os
import subprocess
import sys

import pytest
import torch
import torch.multiprocessing as mp
from helpers import distance, truth
from process_group import train_in_parallel
from torch import nn

from specgrad_kernels import FilterPlan, FilterSpec, filter_grads_


@pytest.mark.parametrize("operator", ["filter_grads_", "filter_grads_torch_"])
@pytest.mark.parametrize("method", ["fft", "lap", "gaussian"])
def test_opcheck(operator, method):
    grads = [torch.randn(1000), torch.randn(16, 8, 3, 3), torch.randn(50, dtype=torch.float64)]
    spec = FilterSpec(method=method).text
    torch.library.opcheck(getattr(torch.ops.specgrad, operator).default, (grads, spec))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fft", "lap", "random"])
def test_compiles_into_one_graph(method):
    weight = nn.Parameter(torch.randn(16, 8, 3, 3))

    def step(x, grad):
        y = grad * 2 + x.mean()
        filter_grads_([y, None], method=method, ratio=0.1)
        return y + 1

    x, grad = torch.randn(4), torch.randn_like(weight)
    compiled = torch.compile(step, fullgraph=True)(x, grad)
    expected = truth(grad * 2 + x.mean(), method=method, ratio=0.1) + 1
    assert distance(compiled, expected) < 1e-6
    before = grad.clone()

    def in_place(grad):
        filter_grads_([grad], method=method)

    torch.compile(in_place, fullgraph=True)(grad)
    assert distance(grad, truth(before, method=method)) < 1e-6


@pytest.mark.slow
def test_plan_compiles_with_the_training_step():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 4))
    plan = FilterPlan.for_model(model)
    grads = [torch.randn_like(p) for p in plan.parameters]
    expected = [truth(grad) for grad in grads]

    @torch.compile(fullgraph=True)
    def filter_all(grads):
        plan.filter_grads_(grads)

    filter_all(grads)
    for grad, exact in zip(grads, expected, strict=True):
        assert distance(grad, exact) < 1e-6


def test_operator_refuses_with_its_own_words_inside_a_graph(native):
    same = torch.randn(100)
    with pytest.raises((RuntimeError, ValueError), match="share memory"):
        torch.ops.specgrad.filter_grads_([same, same], FilterSpec().text)
    with pytest.raises((RuntimeError, ValueError), match="do not compute 'random'"):
        torch.ops.specgrad.filter_grads_([torch.randn(100)], FilterSpec("random").text)


@pytest.mark.slow
def test_data_parallel_filters_after_the_all_reduce(tmp_path):
    mp.spawn(train_in_parallel, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert torch.equal(ranks[0]["averaged"], ranks[1]["averaged"])
    assert torch.equal(ranks[0]["filtered"], ranks[1]["filtered"])
    assert distance(ranks[0]["filtered"], truth(ranks[0]["averaged"])) < 1e-6


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_environment_names_a_backend():
    code = (
        "import torch; from specgrad_kernels import filter_grads_; filter_grads_([torch.ones(99)])"
    )
    assert run_python(code, SPECGRAD_BACKEND="torch").returncode == 0
    failed = run_python(code, SPECGRAD_BACKEND="nonsense")
    assert "backend must be one of" in failed.stderr


def test_a_backend_asked_for_by_name_must_serve(native):
    with pytest.raises(RuntimeError, match="'cpp' was asked for but cannot serve: method 'l2'"):
        filter_grads_([torch.randn(100)], method="l2", backend="cpp")


def test_without_native_code_everything_still_works():
    code = """
import pathlib
glob = pathlib.Path.glob
pathlib.Path.glob = lambda self, pattern: [] if "_kernels" in pattern else glob(self, pattern)
import torch, specgrad_kernels as sk
assert "cpp" not in sk.available_backends()
grad = torch.randn(1000)
sk.filter_grads_([grad])
assert abs(grad.mean()) < 1e-6
try:
    sk.filter_grads_([grad], backend="cpp")
except RuntimeError as error:
    assert "was not built" in str(error) and "C++17 compiler" in str(error), error
else:
    raise AssertionError
from specgrad_kernels.__main__ import machine_report
assert "not available: the native library was not built" in machine_report()
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_report_names_machine_and_backends(capsys):
    from specgrad_kernels.__main__ import main

    assert main([]) == 0
    report = capsys.readouterr().out
    assert f"torch {torch.__version__}" in report
    assert "torch    available" in report


def test_help_teaches(capsys):
    from specgrad_kernels.__main__ import main

    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert "which filter backends run" in capsys.readouterr().out
