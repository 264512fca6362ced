"""Time the op on the convolutions of a ResNet-20 beside the same filter in plain PyTorch."""

import torch
from kernels.benchmark import Benchmark

WIDTHS = (16, 32, 64)


class FilterBenchmark(Benchmark):
    """One call for all layers."""

    seed: int = 0

    def setup(self) -> None:
        shapes = [(16, 3, 3, 3)] + [(width, width, 3, 3) for width in WIDTHS for _ in range(6)]
        self.grads = [torch.randn(shape, device=self.device) for shape in shapes]
        self.out = torch.cat([grad.flatten() for grad in self.grads])

    def benchmark_resnet20(self) -> None:
        copies = [grad.clone() for grad in self.grads]
        self.kernel.filter_grads_(copies, ratio=0.05)
        self.out = torch.cat([grad.flatten() for grad in copies])

    def verify_resnet20(self) -> torch.Tensor:
        filtered = []
        for grad in self.grads:
            spectrum = torch.fft.rfft(grad.flatten())
            spectrum[: len(spectrum) // 20] = 0
            filtered.append(torch.fft.irfft(spectrum, grad.numel()))
        return torch.cat(filtered)
