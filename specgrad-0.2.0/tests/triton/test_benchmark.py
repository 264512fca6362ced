"""The parts of the GPU benchmark that need no GPU."""

import json

import pytest
import torch
from triton_tools.lists import MODELS

bench_gpu = pytest.importorskip("benchmarks.bench_gpu", reason="run from the source tree")
gpu_check = pytest.importorskip("benchmarks.gpu_check", reason="run from the source tree")


def test_the_model_has_the_filtered_layers():
    convolutions = [p for p in bench_gpu.resnet20(num_classes=10).parameters() if p.dim() == 4]
    lengths = [p.numel() for p in convolutions if p.shape[-1] == 3]
    assert lengths == MODELS["resnet20"]


def test_the_loop_is_the_filter():
    from specgrad_kernels import FilterSpec, filter_grads_

    grads = [torch.randn(432), torch.randn(2304)]
    expected = [grad.clone() for grad in grads]
    bench_gpu.per_layer_loop(grads, FilterSpec())
    filter_grads_(expected, backend="torch")
    for grad, truth in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, truth)


class StandStill:
    """A clock for the CPU on which every call takes a microsecond."""

    device = torch.device("cpu")

    def on_device(self, call):
        call()
        return [1.0, 1.0, 1.0]

    def replayed(self, call):
        return "no graphs here"

    def by_the_wall(self, call):
        call()
        return 1.0

    def launches(self, call):
        return 1

    def extra_bytes(self, call):
        return 0


def test_every_way_is_measured_and_written(tmp_path):
    ways = {name: way for name, way in bench_gpu.ways_of("fft").items() if name != "triton"}
    rows = bench_gpu.measure([432, 2304], "fft", ways, StandStill())
    assert [row["way"] for row in rows] == ["torch stacked", "foreach_mul", "torch per layer"]
    assert {row["gradient_bytes"] for row in rows} == {4 * (432 + 2304)}
    bench_gpu.write(tmp_path / "gpu.json", {"rows": rows})
    assert json.loads((tmp_path / "gpu.json").read_text())["rows"] == rows
    pytest.importorskip("matplotlib")
    bench_gpu.plot(tmp_path / "gpu.png", "none", [{"model": "a", **row} for row in rows])
    assert (tmp_path / "gpu.png").stat().st_size > 1000


def test_gradients_move_at_every_call():
    seen = []
    call = bench_gpu.alternate(lambda grads: seen.append(grads), [[1], [2]])
    for _ in range(3):
        call()
    assert seen == [[2], [1], [2]]


def test_programs_are_those_of_the_plan():
    steps = bench_gpu.programs_of(MODELS["resnet20"], "fft")
    assert len(steps) == 3
    assert all(step["programs"] > 0 for step in steps)
    json.dumps(steps)


def test_without_a_tool_the_driver_is_unknown(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setenv("PATH", "")
    assert bench_gpu.driver_version() == "unknown"
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert bench_gpu.driver_version() == "ROCm 6.2"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_without_a_gpu_it_says_so(capsys):
    assert bench_gpu.main([]) == 2
    assert "needs a GPU" in capsys.readouterr().err


def test_rounds_are_measured_each_way(monkeypatch):
    pytest.importorskip("specgrad_fl")
    from pretended import second_gpu

    small = {"model": "resnet8", "batch_size": 5, "epochs": 1, "rounds": 2, "active": 2}
    with second_gpu(monkeypatch):
        found = gpu_check.rounds("cuda:1", 100, filter_backend="torch", eval_every=2, **small)
    assert found["steps, eager"] == ["0 replayed as CUDA graphs, 4 eager: graphs is false"]
    assert found["steps, graphs"] == ["4 replayed as CUDA graphs, 0 eager"]
    assert len(found["steps, graphs on four streams"]) == 4
    assert all(found[f"round of 500 steps, {way}"] > 0 for way in gpu_check.WAYS)


def test_a_part_that_fails_is_on_the_page():
    def broken():
        raise RuntimeError("no driver")

    found = {"gpu": {"name": "T4"}, "report": "as it is", "checks that failed": 2}
    found |= gpu_check.attempt("rounds", broken)
    page = gpu_check.page(found)
    assert "- error in rounds: no driver" in page
    assert "| checks that failed | 2 | 0 |" in page
    assert "| round of 500 steps, eager | not measured | 4 to 7 | s |" in page


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_without_a_gpu_the_check_is_one_sentence(capsys):
    from specgrad_kernels.__main__ import main

    assert main(["gpu"]) == 2
    assert capsys.readouterr().err == ("There is no GPU here that this build of PyTorch can use.\n")
    assert gpu_check.main([]) == 2
