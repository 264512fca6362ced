"""The operator inside PyTorch: schema checks, compiled graphs, data parallelism."""

import os
import subprocess
import sys

import pytest
import torch
import torch.multiprocessing as mp
from helpers import distance, truth
from process_group import train_in_parallel
from representatives import only
from torch import nn

from specgrad_kernels import FilterPlan, FilterSpec, filter_grads_
from specgrad_kernels.kinds import METHODS


@pytest.mark.parametrize("method", only(["fft", "lap", "fft2d"], METHODS))
def test_opcheck(method, backend):
    shapes = [(16, 8, 3, 3), (7, 5, 5)] if method == "fft2d" else [(1000,), (16, 8, 3, 3)]
    grads = [torch.randn(*shape) for shape in shapes] + [torch.randn(4, 5, 5).double()]
    if backend == "cpp" and method in ("l2", "fft2d"):
        pytest.skip("only the torch backend computes it")
    gains = [(0, 0), (0.1, 1)] if method == "spectrum" else None
    for order in (None, "random:3"):
        # these two look at axes, which a permutation of samples leaves without meaning
        order = None if method in ("fft2d", "centralize") else order
        spec = FilterSpec(method=method, order=order, gains=gains)
        arguments = (grads, spec.text, backend)
        torch.library.opcheck(torch.ops.specgrad.filter_grads_.default, arguments)


def test_there_is_one_operator():
    assert [name for name in dir(torch.ops.specgrad) if "filter" in name] == ["filter_grads_"]
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("specgrad::")]
    assert [str(schema) for schema in schemas] == [
        "specgrad::filter_grads_(Tensor(a!)[] grads, str spec, str backend) -> ()"
    ]


def test_the_operator_runs_in_a_new_process_without_a_plan():
    """A saved graph holds the text of the spec and nothing else."""
    spec = FilterSpec("lap", ratio=[0.1, "1/3"], order="10")
    code = (
        "import torch, specgrad_kernels; grads = [torch.arange(63.0).view(7, 9).square()] * 1; "
        "grads.append(grads[0].clone()); "
        f"torch.ops.specgrad.filter_grads_(grads, {spec.text!r}, 'torch'); "
        "print([grad.tolist() for grad in grads])"
    )
    grads = [torch.arange(63.0).view(7, 9).square() for _ in range(2)]
    filter_grads_(grads, method="lap", ratio=[0.1, "1/3"], order="10", backend="torch")
    assert run_python(code).stdout.strip() == str([grad.tolist() for grad in grads])


@pytest.mark.parametrize(
    "spec",
    [
        FilterSpec(),
        FilterSpec("lap", ratio=[0.1, "1/3"], order="10"),
        FilterSpec("gaussian", sigma=7.25, boundary="circular", nonfinite="raise"),
        FilterSpec("spectrum", gains=[(0, 0.1), (0.3, 1)]),
        FilterSpec("random", seed=2**70, batch_dims=1),
        FilterSpec("centralize", group_dims=2),
        FilterSpec(ratio="1/7", order=(2, 0, 1), strategy="band"),
    ],
    ids=lambda spec: spec.text,
)
def test_the_text_of_a_spec_is_the_spec(spec):
    assert FilterSpec.from_text(spec.text) == spec
    assert FilterSpec.from_text(spec.text).fields == spec.fields


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"mehtod": "fft"}', '{"method": "FFTT"}'])
def test_the_operator_refuses_a_text_that_is_no_spec(text):
    with pytest.raises(
        ValueError, match=r"spec .*FilterSpec\(\.\.\.\)\.text; got|method must be one"
    ):
        torch.ops.specgrad.filter_grads_([torch.randn(100)], text, "torch")


@pytest.mark.parametrize("options", [{}, {"ratio": [0.1, 0.3]}, {"order": "10"}], ids=str)
def test_filters_inside_vmap(options, backend):
    stack, whole = torch.randn(30, 5, 8), torch.randn(40, 6)
    expected = [truth(stack[:, i], **{**options, "ratio": 0.1}) for i in range(5)]

    def inside(grad):
        copy, own = grad.clone(), whole.clone()
        filter_grads_([copy, own], backend=backend, **{"ratio": 0.1, **options})
        return copy, own

    mapped, unmapped = torch.vmap(inside, in_dims=1)(stack)
    for index in range(5):
        assert distance(mapped[index], expected[index]) < 1e-6
    ratio = options.get("ratio", [0, 0.1])[1]
    assert distance(unmapped[0], truth(whole, **{**options, "ratio": ratio})) < 1e-6


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.parametrize("method", only(["fft"], ["fft", "lap", "random"]))
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
@pytest.mark.compiles
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


def compiled(function, **options):
    """Compiled down to the operators, without generating code for the rest."""
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", **options)


def test_compiled_calls_refuse_gradients_that_require_grad():
    plan = FilterPlan([("weight", nn.Parameter(torch.zeros(500)))])

    def by_function(x):
        y = x * 2
        filter_grads_([y])
        return y

    def by_plan(x):
        y = x * 2
        plan.filter_grads_([y])
        return y

    x = torch.randn(500, requires_grad=True)
    for function in (by_function, by_plan):
        with pytest.raises(ValueError, match=r"grads\[0\] requires grad, and the filter is not"):
            compiled(function)(x)
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"grads\[0\] requires grad"):
            compiled(function, fullgraph=True)(x)
        assert compiled(function, fullgraph=True)(x.detach()).mean().abs() < 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {"ratio": [0.1, 0.2, 0.3]},
        {"order": "10"},
        {"order": "random:3"},
        {"order": [*range(7, 840), *range(7)]},
        {"order": "10", "batch_dims": 1, "ratio": (0.1, 0.2, 0.3)},
        {"nonfinite": "raise", "method": "lap"},
        {"backend": "torch"},
    ],
    ids=str,
)
def test_compiled_calls_equal_plain_ones(options):
    """With a gradient missing, by the function and by a plan."""
    shape = (2, 28, 30) if "batch_dims" in options else (28, 30)
    grads = [torch.randn(shape), None, torch.randn(shape)]
    backend = options.get("backend", "auto")
    spec = FilterSpec(**{name: v for name, v in options.items() if name != "backend"})
    weights = [(str(index), nn.Parameter(torch.zeros(shape))) for index in range(3)]
    plan = FilterPlan(weights, spec, backend=backend)

    def by_function(grads):
        filter_grads_(grads, **options)

    def run(function):
        copies = [None if grad is None else grad.clone() for grad in grads]
        function(copies)
        return copies[0], copies[2]

    plain = run(by_function)
    assert not torch.equal(plain[0], grads[0])
    for function in (by_function, plan.filter_grads_):
        for one, other in zip(run(compiled(function, fullgraph=True)), plain, strict=True):
            torch.testing.assert_close(one, other)


def test_plans_with_equal_specs_share_a_compiled_graph():
    """A graph per plan would soon reach the compiler's limit."""
    # takes seconds, for which collecting all tests need not wait
    from torch._dynamo.testing import CompileCounter

    graphs = CompileCounter()
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend=graphs)
    def step(plan, grads):
        plan.filter_grads_(grads)

    for ratio in ("0.1", "0.2") * 6:
        plan = FilterPlan([("w", nn.Parameter(torch.zeros(500)))], FilterSpec(ratio=ratio))
        grad = torch.randn(500)
        exact = truth(grad, ratio=ratio)
        step(plan, [grad])
        assert distance(grad, exact) < 1e-6
    assert graphs.frame_count == 2


def test_compiled_calls_follow_a_ratio_that_changes():
    grad = torch.randn(500)

    def constant(grad, ratio):
        filter_grads_([grad], ratio=ratio)

    def several(grad, ratio):
        filter_grads_([grad, None], ratio=[ratio, 0.5])

    for function in (constant, several):
        in_one_graph = compiled(function, fullgraph=True)
        for ratio in (0.1, 0.2, 0.3, 0.1):
            copy = grad.clone()
            in_one_graph(copy, ratio)
            assert distance(copy, truth(grad, ratio=ratio)) < 1e-6


@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_compiled_calls_raise_for_nonfinite_values(backend):
    grad = torch.randn(500)
    grad[3] = float("nan")
    before = grad.clone()

    def check(grad):
        filter_grads_([grad], nonfinite="raise", backend=backend)

    with pytest.raises(FloatingPointError, match=r"grads\[0\].* holds NaN or Inf"):
        compiled(check, fullgraph=True)(grad)
    assert torch.equal(grad.nan_to_num(), before.nan_to_num())


def test_operator_refuses_with_the_same_words_inside_a_graph(backend):
    same = torch.randn(100)
    with pytest.raises(ValueError, match="share memory"):
        torch.ops.specgrad.filter_grads_([same, same], FilterSpec().text, backend)


@pytest.mark.slow
def test_data_parallel_filters_after_the_all_reduce(tmp_path):
    # copies of this process have torch already
    mp.start_processes(train_in_parallel, (str(tmp_path),), 2, start_method="fork")
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
    failed = run_python("import specgrad_kernels", SPECGRAD_BACKEND="nonsense")
    sentence = "SPECGRAD_BACKEND must be one of auto, triton, cpp, torch, or unset; got 'nonsense'"
    assert sentence in failed.stderr


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
