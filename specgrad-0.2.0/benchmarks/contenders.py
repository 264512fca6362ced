"""The contenders. Every contender filters the same gradients, in place.

``bind(grads, method, ratio)`` does what needs doing once and returns the call that is timed.
Contenders that people would not write by the step (buffers, norms, groups) get that for free.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import Call
from specgrad_kernels import FilterSpec, filter_grads_, reference
from specgrad_kernels.kinds import FUSED

# custom gains run on the kernels of fft, with other tables
METHODS = tuple(kind.name for kind in FUSED if kind.name != "spectrum")


@dataclass(frozen=True)
class Contender:
    """One way to filter.

    filters: False for the floor, which only touches the memory.
    longest: samples of the longest layer that it can take.
    """

    name: str
    title: str
    methods: tuple[str, ...]
    bind: Callable[[Sequence[Tensor], str, float], Call]
    filters: bool = True
    longest: int | None = None


def _fft_loop(grads: Sequence[Tensor], method: str, ratio: float) -> Call:
    """The paper's equations, layer after layer, as its reader would write them."""

    def call() -> None:
        for grad in grads:
            flat = grad.reshape(-1)
            spectrum = torch.fft.rfft(flat)
            spectrum[: int(ratio * spectrum.numel())] = 0
            grad.copy_(torch.fft.irfft(spectrum, n=flat.numel()).view_as(grad))

    return call


def _fft_stacked(grads: Sequence[Tensor], method: str, ratio: float) -> Call:
    """Layers of equal length in one batched transform.

    The stack is kept; spectra are not, because transforms into kept memory proved slower. A
    layer of its own length is transformed where it is.
    """
    groups: dict[int, list[Tensor]] = defaultdict(list)
    for grad in grads:
        groups[grad.numel()].append(grad.view(-1))
    prepared = []
    for d, members in groups.items():
        stack = members[0][None] if len(members) == 1 else members[0].new_empty(len(members), d)
        prepared.append((members, stack, reference.cutoff(ratio, d), d))

    def call() -> None:
        for members, stack, cutoff, d in prepared:
            if len(members) > 1:
                torch.stack(members, out=stack)
            spectrum = torch.fft.rfft(stack)
            spectrum[:, :cutoff] = 0
            torch._foreach_copy_(members, torch.fft.irfft(spectrum, n=d).unbind())

    return call


def _pool_loop(grads: Sequence[Tensor], method: str, ratio: float) -> Call:
    """Average pooling that counts only samples inside, layer after layer."""
    spec = FilterSpec(method="lap", ratio=ratio)
    windows = [spec.window_of(grad.numel()) for grad in grads]

    def call() -> None:
        for grad, window in zip(grads, windows, strict=True):
            if window is None:
                continue
            trend = F.avg_pool1d(
                grad.view(1, 1, -1), window, 1, padding=window // 2, count_include_pad=False
            )
            grad.sub_(trend.view_as(grad))

    return call


def _weights_inside(d: int, weights: Tensor) -> Tensor:
    """For every sample, the sum of the weights that lie on samples and not beyond the ends."""
    radius = weights.numel() // 2
    sums = F.pad(weights.cumsum(0), (1, 0))
    before = torch.arange(d).clamp(max=radius)
    return sums[radius + 1 + before.flip(0)] - sums[radius - before]


def _conv_loop(grads: Sequence[Tensor], method: str, ratio: float) -> Call:
    """Convolution with the Gaussian, divided by the weights inside, layer after layer."""
    spec = FilterSpec(method="gaussian", ratio=ratio)
    prepared = []
    for grad in grads:
        sigma = spec.sigma_of(grad.numel())
        if sigma is not None:
            weights = reference.gaussian_weights(sigma)
            inside = _weights_inside(grad.numel(), weights).to(grad.dtype)
            prepared.append((grad, weights.to(grad.dtype)[None, None], inside))

    def call() -> None:
        for grad, kernel, inside in prepared:
            trend = F.conv1d(grad.view(1, 1, -1), kernel, padding=kernel.shape[-1] // 2)
            grad.sub_(trend.div_(inside).view_as(grad))

    return call


def _conv_native_loop(grads: Sequence[Tensor], method: str, ratio: float) -> Call:
    """The same loop kept away from oneDNN, which is slow for one channel and a long signal."""
    convolve = _conv_loop(grads, method, ratio)

    def call() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the context manager touches settings of Intel GPUs
            with torch.backends.mkldnn.flags(enabled=False):
                convolve()

    return call


def _floor(grads: Sequence[Tensor], method: str, ratio: float) -> Call:
    """Every gradient read and written once, by PyTorch."""
    listed = list(grads)
    return lambda: torch._foreach_mul_(listed, 1.0)


def _ours(grads: Sequence[Tensor], method: str, ratio: float) -> Call:
    listed = list(grads)
    return lambda: filter_grads_(listed, method=method, ratio=ratio)


OURS = "specgrad"
FLOOR = "floor"
STACKED = "fft_stacked"
LOOPS = {
    "fft": ("fft_loop",),
    "lap": ("pool_loop",),
    "gaussian": ("conv_loop", "conv_native_loop"),
}

CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("fft_loop", "torch.fft, layer by layer", ("fft",), _fft_loop),
        Contender("fft_stacked", "torch.fft, equal lengths stacked", ("fft",), _fft_stacked),
        Contender("pool_loop", "avg_pool1d, layer by layer", ("lap",), _pool_loop),
        Contender("conv_loop", "conv1d, layer by layer", ("gaussian",), _conv_loop),
        # it unfolds its input: 61 taps of 16.7 M samples would be 4 GB
        Contender(
            "conv_native_loop",
            "conv1d without oneDNN, layer by layer",
            ("gaussian",),
            _conv_native_loop,
            longest=2**22,
        ),
        Contender(FLOOR, "torch._foreach_mul_", METHODS, _floor, filters=False),
        Contender(OURS, "specgrad", METHODS, _ours),
    )
}


def contenders_of(method: str, longest: int) -> list[Contender]:
    """Everything that is timed for one method on layers of up to ``longest`` samples."""
    return [
        contender
        for contender in CONTENDERS.values()
        if method in contender.methods and (contender.longest or longest) >= longest
    ]
