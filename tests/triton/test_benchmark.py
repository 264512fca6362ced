"""What of the GPU benchmark can be checked without a GPU."""

import pytest
import torch
from triton_tools.lists import MODELS

bench_gpu = pytest.importorskip("benchmarks.bench_gpu", reason="run from the source tree")
gpu_roofline = pytest.importorskip("benchmarks.gpu_roofline", reason="run from the source tree")


def test_the_model_has_the_filtered_layers():
    convolutions = [p for p in bench_gpu.resnet20().parameters() if p.dim() == 4]
    lengths = [p.numel() for p in convolutions if p.shape[-1] == 3]
    assert lengths == MODELS["resnet20"]
    assert bench_gpu.resnet20()(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_the_loop_is_the_filter():
    from specgrad_kernels import FilterSpec, filter_grads_

    grads = [torch.randn(432), torch.randn(2304)]
    expected = [grad.clone() for grad in grads]
    bench_gpu.per_layer_loop(grads, FilterSpec())
    filter_grads_(expected, backend="torch")
    for grad, truth in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, truth)


def test_files_are_written(tmp_path):
    rows = [
        {"model": model, "way": way, "p50_us": "2.5", "gpu": "none"}
        for model in ("a", "b")
        for way in ("x", "y")
    ]
    bench_gpu.write(tmp_path / "gpu.csv", rows)
    assert (tmp_path / "gpu.csv").read_text().splitlines()[0] == "model,way,p50_us,gpu"
    pytest.importorskip("matplotlib")
    bench_gpu.plot(tmp_path / "gpu.png", rows)
    assert (tmp_path / "gpu.png").stat().st_size > 1000


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_without_a_gpu_it_says_so(capsys):
    assert bench_gpu.main([]) == 2
    assert "needs a GPU" in capsys.readouterr().err


def test_a_faster_memory_gives_a_shorter_estimate():
    from specgrad_kernels import FilterSpec

    work = gpu_roofline.Work(MODELS["resnet18"], FilterSpec())
    times = [gpu_roofline.seconds(work, gpu) for gpu in gpu_roofline.GPUS]
    assert times == sorted(times, reverse=True)
    assert len(work.launches()) == 5
