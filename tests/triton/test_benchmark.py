"""The parts of the GPU benchmark that need no GPU."""

import json

import pytest
import torch
from triton_tools.lists import MODELS

bench_gpu = pytest.importorskip("benchmarks.bench_gpu", reason="run from the source tree")


def test_the_model_has_the_filtered_layers():
    convolutions = [p for p in bench_gpu.resnet20().parameters() if p.dim() == 4]
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
